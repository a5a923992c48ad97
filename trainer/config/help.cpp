#include "trainer/config/help.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "trainer/config/field.h"

namespace distill::config {

namespace {

constexpr size_t kWidth = 120;
constexpr size_t kIndent = 6; // of the meaning, below its key

// The meaning with the names of a choice, the range and the condition.
std::string meaning(const Field& field) {
  std::string text = field.help;
  if (const auto* choice = std::get_if<Choice>(&field.kind)) {
    absl::StrAppend(&text, " One of ", absl::StrJoin(choice->names, ", "), ".");
  } else if (std::holds_alternative<Real>(field.kind)) {
    std::string range = expectation(field);
    range[0] = static_cast<char>(absl::ascii_toupper(range[0]));
    absl::StrAppend(&text, " ", range, ".");
  } else if (const auto* integer = std::get_if<Integer>(&field.kind); integer != nullptr && integer->min > 0) {
    absl::StrAppend(&text, " At least ", integer->min, ".");
  }
  if (field.only_when.holds) {
    absl::StrAppend(&text, " Allowed only when ", field.only_when.text, ".");
  }
  return text;
}

// `text` in lines of at most kWidth, all of them indented.
std::string wrapped(const std::string& text) {
  const std::string indent(kIndent, ' ');
  std::string out = indent;
  size_t column = kIndent;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (column + 1 + word.size() > kWidth) {
      absl::StrAppend(&out, "\n", indent);
      column = kIndent;
    } else if (column > kIndent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

std::string type_and_unit(const Field& field) {
  return field.unit.empty() ? type_name(field) : absl::StrCat(type_name(field), " (", field.unit, ")");
}

} // namespace

std::string help_text() {
  std::string text =
      "The configuration is one YAML file: sections, each a mapping of keys. `--set section.key=VALUE` overrides a key,\n"
      "with VALUE in YAML; `--set section.key=null` restores its default. Integers may be written as 1e9 or 1_000_000.\n"
      "Relative paths are relative to the working directory.\n\n"
      "Every key with its type, unit and default, and below it its meaning:\n";
  const Config defaults;
  for (const Section& section : sections()) {
    absl::StrAppend(&text, "\n", section.name, ": ", section.help, "\n");
    for (const Field& field : section.fields) {
      absl::StrAppend(
          &text, "  ", field.key(), "  ", type_and_unit(field), ", default ", to_yaml(field, defaults), "\n",
          wrapped(meaning(field)), "\n");
    }
  }
  return text;
}

} // namespace distill::config
