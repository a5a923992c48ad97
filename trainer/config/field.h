#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trainer/config/config.h"

// The description of one key of the configuration. sections() lists all keys; reading, overrides, help,
// dump and suggestions are loops over that list.
namespace distill::config {

template <typename T>
using Ref = T& (*)(Config&);

struct Boolean {
  Ref<bool> value;
};

struct Integer {
  Ref<int64_t> value;
  int64_t min;
  int64_t max;
  bool or_auto = false; // the word auto is a value too, stored as kAutomatic
};

struct Real {
  Ref<double> value;
  double min;
  double max; // infinity: no maximum (values are finite)
  bool min_excluded = false;
  bool max_excluded = false;
  bool or_zero = false; // 0 is a value, too, though it is below the minimum
  bool or_auto = false; // as of an Integer
};

struct Text {
  Ref<std::string> value;
};

// A text, or a list of texts.
struct Texts {
  Ref<std::vector<std::string>> value;
};

// The field has one of an enumeration's names, in the order of its enumerators.
struct Choice {
  std::vector<std::string> names;
  size_t (*get)(const Config&); // an index into names
  void (*set)(Config&, size_t);
  // Names that earlier versions had, each with what to do instead.
  std::vector<std::pair<std::string, std::string>> removed = {};
};

// A policy for each decoder block of the student (by_block.h).
struct BlockPolicies {
  std::string syntax; // of the texts that are read, for errors
  std::string example; // one of them
  std::string (*text)(const Config&); // the shortest text that reads back equal
  bool (*read)(Config&, const std::string&); // false: the text is none of these
};

// A path, a mapping of path, weight and teacher, or a list of either.
struct DataSets {
  Ref<std::vector<DataSet>> value;
};

// A list of teachers with names (config/teachers.h).
struct TeacherList {
  Ref<std::vector<NamedTeacher>> value;
};

using Kind = std::variant<Boolean, Integer, Real, Text, Texts, Choice, BlockPolicies, DataSets, TeacherList>;

// When a key has an effect. To give it otherwise is an error, and the dump leaves it out.
struct Condition {
  std::function<bool(const Config&)> holds; // null: always
  std::string text; // "loss.divergence is jsd"
  std::string key; // the key that decides
};

struct Field {
  std::string section; // empty: the key is a section of its own, whose value is no mapping
  std::string name;
  Kind kind;
  std::string unit; // empty: none
  std::string help;
  Condition only_when = {};

  std::string key() const {
    return section.empty() ? name : section + "." + name;
  }
  bool applies(const Config& config) const {
    return !only_when.holds || only_when.holds(config);
  }
};

struct Section {
  std::string name; // "train"; "student.lora" is a mapping in the section student
  std::string help;
  std::vector<Field> fields;

  // Whether its value is that of its one field, and no mapping of keys.
  bool is_value() const {
    return fields.size() == 1 && fields[0].section.empty();
  }
};

// Every section and key, in the order of the help and the dump.
const std::vector<Section>& sections();

const Section* find_section(const std::string& name);
// `key` is "section.name", or the name of a section that is a value; null: there is no such key.
const Field* find_field(const std::string& key);

// "integer", "number", "true or false", "text", "texts", "choice", "data sets".
std::string type_name(const Field& field);
// The values that a field may have, for errors: "an integer from 1 to 100", "one of pack, concat".
std::string expectation(const Field& field);
// The value as YAML that reads back equal.
std::string to_yaml(const Field& field, const Config& config);

} // namespace distill::config
