#include "trainer/config/field.h"

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace distill::config {

namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>; // clang before 17 asks for it

// The shortest text that reads back equal.
std::string shortest(double value) {
  for (int digits = 6; digits < 17; ++digits) {
    const std::string text = absl::StrFormat("%.*g", digits, value);
    double back = 0;
    if (absl::SimpleAtod(text, &back) && back == value) {
      return text;
    }
  }
  return absl::StrFormat("%.17g", value);
}

std::string in_quotes(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// ", teacher: ..." of a data set.
std::string shares_yaml(const std::vector<data::TeacherShare>& shares) {
  std::vector<std::string> items;
  for (const auto& [name, share] : shares) {
    items.push_back(absl::StrCat(in_quotes(name), ": ", shortest(share)));
  }
  return items.empty() ? "" : absl::StrCat(", teacher: {", absl::StrJoin(items, ", "), "}");
}

// Keys of other sections than `teacher` are in mappings.
std::string teacher_yaml(const NamedTeacher& teacher) {
  std::vector<std::string> items = {absl::StrCat("name: ", in_quotes(teacher.name))};
  std::vector<std::pair<std::string, std::vector<std::string>>> inner;
  for (const TeacherKey& key : teacher.keys) {
    const size_t dot = key.key.find('.');
    const std::string section = key.key.substr(0, dot), item = absl::StrCat(key.key.substr(dot + 1), ": ", key.value);
    if (section == "teacher" && key.key != "teacher.cache") {
      items.push_back(item);
      continue;
    }
    const std::string name = section == "teacher" ? "cache" : section;
    const auto found = std::find_if(inner.begin(), inner.end(), [&](const auto& one) { return one.first == name; });
    auto& own = found != inner.end() ? *found : inner.emplace_back(name, std::vector<std::string>());
    own.second.push_back(section == "teacher" ? absl::StrCat("path: ", key.value) : item);
  }
  for (const auto& [name, keys] : inner) {
    items.push_back(absl::StrCat(name, ": {", absl::StrJoin(keys, ", "), "}"));
  }
  return absl::StrCat("{", absl::StrJoin(items, ", "), "}");
}

std::string describe(const Integer& kind) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const std::string integer = kind.max == kMax ? absl::StrCat("an integer of at least ", kind.min)
                                               : absl::StrCat("an integer from ", kind.min, " to ", kind.max);
  return kind.or_auto ? "auto, or " + integer : integer;
}

std::string describe(const Real& kind) {
  if (kind.or_auto) {
    Real others = kind;
    others.or_auto = false;
    return absl::StrCat("auto, ", describe(others));
  }
  if (kind.or_zero) {
    Real others = kind;
    others.or_zero = false;
    return absl::StrCat("0, or ", describe(others));
  }
  if (kind.min > 0 && !kind.min_excluded) { // as far as a positive number has a meaning
    return absl::StrCat("a number above 0, from ", shortest(kind.min), " to ", shortest(kind.max));
  }
  const std::string low = absl::StrCat(kind.min_excluded ? "above " : "of at least ", shortest(kind.min));
  if (std::isinf(kind.max)) {
    return absl::StrCat("a number ", low);
  }
  if (!kind.min_excluded && !kind.max_excluded) {
    return absl::StrCat("a number from ", shortest(kind.min), " to ", shortest(kind.max));
  }
  return absl::StrCat("a number ", low, " and ", kind.max_excluded ? "below " : "at most ", shortest(kind.max));
}

} // namespace

const Section* find_section(const std::string& name) {
  for (const Section& section : sections()) {
    if (section.name == name) {
      return &section;
    }
  }
  return nullptr;
}

const Field* find_field(const std::string& key) {
  const size_t dot = key.rfind('.'); // a section's name may have dots
  const Section* section = find_section(dot == std::string::npos ? key : key.substr(0, dot));
  if (section == nullptr || (dot == std::string::npos) != section->is_value()) {
    return nullptr;
  }
  if (section->is_value()) {
    return &section->fields[0];
  }
  for (const Field& field : section->fields) {
    if (field.name == key.substr(dot + 1)) {
      return &field;
    }
  }
  return nullptr;
}

std::string type_name(const Field& field) {
  return std::visit(
      Overloaded{
          [](const Boolean&) { return "boolean"; }, [](const Integer&) { return "integer"; },
          [](const Real&) { return "number"; }, [](const Text&) { return "text"; },
          [](const Texts&) { return "texts"; }, [](const Choice&) { return "choice"; },
          [](const BlockPolicies&) { return "text"; }, [](const DataSets&) { return "data sets"; },
          [](const TeacherList&) { return "teachers"; }},
      field.kind);
}

std::string expectation(const Field& field) {
  return std::visit(
      Overloaded{
          [](const Boolean&) -> std::string { return "true or false"; },
          [](const Integer& kind) -> std::string { return describe(kind); },
          [](const Real& kind) -> std::string { return describe(kind); },
          [](const Text&) -> std::string { return "text"; },
          [](const Texts&) -> std::string { return "a text, or a list of texts"; },
          [](const Choice& kind) { return absl::StrCat("one of ", absl::StrJoin(kind.names, ", ")); },
          [](const BlockPolicies& kind) { return kind.syntax; },
          [](const DataSets&) -> std::string { return "a path, {path, weight, teacher}, or a list of these"; },
          [](const TeacherList&) -> std::string { return "a list of teachers, mappings with name and path"; }},
      field.kind);
}

std::string to_yaml(const Field& field, const Config& config) {
  // The accessors are written for reading; nothing below writes.
  auto& values = const_cast<Config&>(config);
  return std::visit(
      Overloaded{
          [&](const Boolean& kind) -> std::string { return kind.value(values) ? "true" : "false"; },
          [&](const Integer& kind) -> std::string {
            const int64_t value = kind.value(values);
            return kind.or_auto && value == kAutomatic ? "auto" : absl::StrCat(value);
          },
          [&](const Real& kind) -> std::string {
            const double value = kind.value(values);
            return kind.or_auto && value == kAutomatic ? "auto" : shortest(value);
          },
          [&](const Text& kind) -> std::string { return in_quotes(kind.value(values)); },
          [&](const Texts& kind) -> std::string {
            std::vector<std::string> items;
            for (const std::string& text : kind.value(values)) {
              items.push_back(in_quotes(text));
            }
            return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
          },
          [&](const Choice& kind) -> std::string { return kind.names[kind.get(values)]; },
          [&](const BlockPolicies& kind) -> std::string { return in_quotes(kind.text(values)); },
          [&](const DataSets& kind) -> std::string {
            std::vector<std::string> items;
            for (const DataSet& set : kind.value(values)) {
              items.push_back(absl::StrCat(
                  "{path: ", in_quotes(set.path), ", weight: ", shortest(set.weight), shares_yaml(set.teachers), "}"));
            }
            return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
          },
          [&](const TeacherList& kind) -> std::string {
            std::vector<std::string> items;
            for (const NamedTeacher& teacher : kind.value(values)) {
              items.push_back(teacher_yaml(teacher));
            }
            return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
          }},
      field.kind);
}

} // namespace distill::config
