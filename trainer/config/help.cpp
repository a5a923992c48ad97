#include "trainer/config/help.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>

#include "trainer/config/field.h"

namespace distill::config {

namespace {

constexpr size_t kWidth = 132;

// What a row says besides the meaning: the choices, the range, the condition.
std::string details(const Field& field) {
  std::string text = field.help;
  if (std::holds_alternative<Choice>(field.kind)) {
    absl::StrAppend(&text, " One of ", absl::StrJoin(std::get<Choice>(field.kind).names, ", "), ".");
  } else if (std::holds_alternative<Real>(field.kind)) {
    std::string range = expectation(field);
    range[0] = 'A';
    absl::StrAppend(&text, " ", range, ".");
  } else if (const auto* integer = std::get_if<Integer>(&field.kind); integer != nullptr && integer->min > 0) {
    absl::StrAppend(&text, " At least ", integer->min, ".");
  }
  if (field.only_when.holds) {
    absl::StrAppend(&text, " Only when ", field.only_when.text, ".");
  }
  return text;
}

// `text` in lines of at most `width`, all but the first indented.
std::string wrapped(const std::string& text, size_t indent, size_t width) {
  std::string out;
  size_t column = 0;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (column > 0 && column + 1 + word.size() > width) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = 0;
    } else if (column > 0) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

std::string type_and_unit(const Field& field) {
  return field.unit.empty() ? type_name(field) : absl::StrCat(type_name(field), ", ", field.unit);
}

} // namespace

std::string help_text() {
  const Config defaults;
  size_t key_width = 0, type_width = 0, default_width = 0;
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) {
      key_width = std::max(key_width, field.key().size());
      type_width = std::max(type_width, type_and_unit(field).size());
      default_width = std::max(default_width, to_yaml(field, defaults).size());
    }
  }
  std::string text =
      "The configuration is one YAML file: sections, each a mapping of keys. `--set section.key=VALUE` overrides a key, with\n"
      "VALUE in YAML; `--set section.key=null` puts its default back. Integers may be written as 1e9 or 1_000_000.\n"
      "Relative paths are relative to the working directory.\n\n"
      "Columns: key, type and unit, default, meaning.\n";
  const size_t indent = 2 + key_width + 2 + type_width + 2 + default_width + 2;
  for (const Section& section : sections()) {
    absl::StrAppend(&text, "\n", section.name, ": ", section.help, "\n");
    for (const Field& field : section.fields) {
      absl::StrAppendFormat(
          &text, "  %-*s  %-*s  %-*s  %s\n", key_width, field.key(), type_width, type_and_unit(field), default_width,
          to_yaml(field, defaults), wrapped(details(field), indent, kWidth > indent + 40 ? kWidth - indent : 60));
    }
  }
  return text;
}

} // namespace distill::config
