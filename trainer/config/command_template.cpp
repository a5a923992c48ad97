#include "trainer/config/command_template.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <functional>

namespace distill::config {
namespace {

// Calls `text` with each piece of plain text and `name` with what stands in each pair of braces. False: a brace has no
// other half; `rest` is then the text from there on.
bool scan(
    std::string_view command, const std::function<void(std::string_view)>& text,
    const std::function<void(std::string_view)>& name, std::string_view& rest) {
  while (!command.empty()) {
    const size_t brace = command.find_first_of("{}");
    text(command.substr(0, brace));
    if (brace == std::string_view::npos) {
      return true;
    }
    rest = command.substr(brace);
    if (rest.size() > 1 && rest[1] == rest[0]) {
      text(rest.substr(0, 1));
      command = rest.substr(2);
      continue;
    }
    const size_t end = rest.find('}');
    if (rest[0] == '}' || end == std::string_view::npos) {
      return false;
    }
    name(rest.substr(1, end - 1));
    command = rest.substr(end + 1);
  }
  return true;
}

std::string quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

} // namespace

std::string placeholder_text(absl::Span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) {
    absl::StrAppend(&out, out.empty() ? "{" : ", {", std::string(name), "}");
  }
  return out;
}

std::optional<std::string> unknown_placeholder(const std::string& command, absl::Span<const std::string_view> names) {
  std::optional<std::string> unknown;
  std::string_view rest;
  const bool whole = scan(
      command, [](std::string_view) {},
      [&](std::string_view name) {
        if (!unknown && std::find(names.begin(), names.end(), name) == names.end()) {
          unknown = absl::StrCat("{", std::string(name), "}");
        }
      },
      rest);
  return unknown || whole ? unknown : std::string(rest);
}

bool has_placeholder(const std::string& command, const std::string& name) {
  bool found = false;
  std::string_view rest;
  scan(
      command, [](std::string_view) {}, [&](std::string_view other) { found = found || other == name; }, rest);
  return found;
}

std::string fill_placeholders(const std::string& command, const std::map<std::string, std::string>& values) {
  std::string out;
  std::string_view rest;
  scan(
      command, [&](std::string_view text) { out.append(text); },
      [&](std::string_view name) { out.append(quoted(values.at(std::string(name)))); }, rest);
  return out;
}

} // namespace distill::config
