#include "trainer/config/value.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include "trainer/config/numbers.h"
#include "trainer/config/suggest.h"
#include "trainer/config/teachers.h"

namespace distill::config {

namespace {

constexpr double kMostWeight = 1e30; // of a data set: their sum is finite

constexpr size_t kMaxShown = 60;

// yaml-cpp tags quoted scalars with "!" and plain scalars with "?".
bool is_quoted(const YAML::Node& node) {
  return node.IsScalar() && node.Tag() == "!";
}

// Assigns one node to one field.
class Assignment {
 public:
  Assignment(
      const Field& field, const YAML::Node& node, const Problem& place, Config& config, std::vector<Problem>& problems)
      : field_(field), node_(node), place_(place), config_(config), problems_(problems) {}

  void operator()(const Boolean& kind) {
    const std::string* text = plain_scalar();
    if (text == nullptr) {
      return;
    }
    if (*text == "true" || *text == "True" || *text == "TRUE") {
      kind.value(config_) = true;
    } else if (*text == "false" || *text == "False" || *text == "FALSE") {
      kind.value(config_) = false;
    } else {
      fail(describe(node_));
    }
  }

  void operator()(const Integer& kind) {
    if (kind.or_auto && is_auto()) {
      kind.value(config_) = kAutomatic;
      return;
    }
    const std::string* text = plain_scalar();
    if (text == nullptr) {
      return;
    }
    std::string why;
    const std::optional<int64_t> value = parse_integer(*text, &why);
    if (!value) {
      fail(absl::StrCat(describe(node_), " (", why, ")"));
    } else if (*value < kind.min || *value > kind.max) {
      fail(describe(node_));
    } else {
      kind.value(config_) = *value;
    }
  }

  void operator()(const Real& kind) {
    if (kind.or_auto && is_auto()) {
      kind.value(config_) = kAutomatic;
      return;
    }
    const std::string* text = plain_scalar();
    if (text == nullptr) {
      return;
    }
    std::string why;
    const std::optional<double> value = parse_real(*text, &why);
    if (!value) {
      fail(absl::StrCat(describe(node_), " (", why, ")"));
    } else if (kind.or_zero && *value == 0) {
      kind.value(config_) = *value;
    } else if (
        *value < kind.min || *value > kind.max || (kind.min_excluded && *value == kind.min) ||
        (kind.max_excluded && *value == kind.max)) {
      fail(describe(node_));
    } else {
      kind.value(config_) = *value;
    }
  }

  // A missing value is the empty text: `teacher: {path: }` means no teacher.
  void operator()(const Text& kind) {
    if (node_.IsNull()) {
      kind.value(config_).clear();
    } else if (!node_.IsScalar()) {
      fail(describe(node_));
    } else if (node_.Scalar().find('\0') != std::string::npos) {
      fail(absl::StrCat(describe(node_), " (a zero byte)"));
    } else {
      kind.value(config_) = node_.Scalar();
    }
  }

  void operator()(const Texts& kind) {
    std::vector<std::string> texts;
    if (node_.IsScalar()) {
      texts.push_back(node_.Scalar());
    } else if (!node_.IsSequence() && !node_.IsNull()) {
      fail(describe(node_));
      return;
    }
    for (size_t i = 0; node_.IsSequence() && i < node_.size(); ++i) {
      if (!node_[i].IsScalar()) {
        fail_at(node_[i], absl::StrCat(place_.key, "[", i, "]"), "text", describe(node_[i]));
        return;
      }
      texts.push_back(node_[i].Scalar());
    }
    kind.value(config_) = std::move(texts);
  }

  void operator()(const Choice& kind) {
    if (!node_.IsScalar()) {
      fail(describe(node_));
      return;
    }
    for (size_t i = 0; i < kind.names.size(); ++i) {
      if (kind.names[i] == node_.Scalar()) {
        kind.set(config_, i);
        return;
      }
    }
    for (const auto& [name, remedy] : kind.removed) {
      if (name == node_.Scalar()) {
        fail(describe(node_), remedy);
        return;
      }
    }
    const std::string close = closest_name(node_.Scalar(), kind.names);
    fail(describe(node_), close.empty() ? "" : absl::StrCat("did you mean ", close, "?"));
  }

  void operator()(const BlockPolicies& kind) {
    if (!node_.IsScalar() || !kind.read(config_, node_.Scalar())) {
      fail(describe(node_));
    }
  }

  void operator()(const TeacherList& kind) {
    std::vector<NamedTeacher> teachers;
    const size_t before = problems_.size();
    if (!node_.IsSequence() && !node_.IsNull()) {
      fail(describe(node_));
    }
    for (size_t i = 0; node_.IsSequence() && i < node_.size(); ++i) {
      const std::string key = absl::StrCat(place_.key, "[", i, "]");
      if (!node_[i].IsMap()) {
        fail_at(node_[i], key, "a mapping with name and path", describe(node_[i]));
        continue;
      }
      NamedTeacher teacher = read_teacher(node_[i], key);
      const auto same = [&](const NamedTeacher& other) { return other.name == teacher.name; };
      if (!teacher.name.empty() && std::any_of(teachers.begin(), teachers.end(), same)) {
        fail_at(node_[i], key + ".name", "another name than that of an earlier teacher", teacher.name);
      }
      teachers.push_back(std::move(teacher));
    }
    if (teachers.size() > data::kMostTeacherNames) {
      fail(absl::StrCat(teachers.size(), " teachers"), absl::StrCat("at most ", data::kMostTeacherNames));
    }
    if (problems_.size() == before) {
      kind.value(config_) = std::move(teachers);
    }
  }

  void operator()(const DataSets& kind) {
    std::vector<DataSet> sets;
    const size_t before = problems_.size();
    if (node_.IsSequence()) {
      for (size_t i = 0; i < node_.size(); ++i) {
        add_data_set(node_[i], absl::StrCat(place_.key, "[", i, "]"), sets);
      }
    } else {
      add_data_set(node_, place_.key, sets);
    }
    if (problems_.size() == before) {
      kind.value(config_) = std::move(sets);
    }
  }

 private:
  NamedTeacher read_teacher(const YAML::Node& node, const std::string& place) {
    NamedTeacher teacher;
    std::vector<std::string> seen;
    for (const auto& item : node) {
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : describe(item.first);
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
        fail_at(item.first, absl::StrCat(place, ".", name), "one value", "a second one");
      } else if (name == "name") {
        teacher.name = item.second.IsScalar() ? item.second.Scalar() : "";
        if (!data::is_teacher_name(teacher.name)) {
          fail_at(item.second, place + ".name", "a name of 1 to 64 letters, digits or _.-", describe(item.second));
        }
      } else if (item.second.IsMap()) {
        for (const auto& inner : item.second) {
          const std::string key = inner.first.IsScalar() ? inner.first.Scalar() : describe(inner.first);
          read_teacher_key(absl::StrCat(name, ".", key), inner.first, inner.second, place, teacher);
        }
      } else {
        read_teacher_key(name, item.first, item.second, place, teacher);
      }
      seen.push_back(name);
    }
    if (std::find(seen.begin(), seen.end(), "name") == seen.end()) {
      fail_at(node, place + ".name", "the name by which the data name this teacher", "none");
    }
    return teacher;
  }

  void read_teacher_key(
      const std::string& name, const YAML::Node& key_node, const YAML::Node& value, const std::string& place,
      NamedTeacher& teacher) {
    const std::string key = key_of_teacher(name);
    const auto same = [&](const TeacherKey& other) { return other.key == key; };
    if (key.empty()) {
      fail_at(key_node, absl::StrCat(place, ".", name), "a key of a teacher", "another one", keys_of_teachers());
      return;
    }
    if (std::any_of(teacher.keys.begin(), teacher.keys.end(), same)) {
      fail_at(key_node, absl::StrCat(place, ".", name), "one value", "a second one");
      return;
    }
    Problem at = place_;
    at.key = absl::StrCat(place, ".", name);
    at.line = place_.line > 0 ? std::max<int64_t>(place_.line, key_node.Mark().line + 1) : 0;
    const Field& field = *find_field(key);
    Config scratch;
    assign(field, value, at, scratch, problems_);
    teacher.keys.push_back({key, to_yaml(field, scratch), at.line});
  }

  bool is_auto() const { // a text, with or without quotes
    return node_.IsScalar() && node_.Scalar() == "auto";
  }

  // The text of a scalar without quotes; null, with a problem, for other nodes.
  const std::string* plain_scalar() {
    if (!node_.IsScalar() || is_quoted(node_)) {
      fail(describe(node_), node_.IsScalar() ? "quotes make it a text: write the value without them" : "");
      return nullptr;
    }
    return &node_.Scalar();
  }

  void fail(std::string found, std::string hint = "") {
    fail_at(node_, place_.key, expectation(field_), std::move(found), std::move(hint));
  }

  void fail_at(
      const YAML::Node& node, std::string key, std::string expected, std::string found, std::string hint = "") {
    Problem problem = place_;
    // The node of a long list may be on a later line than the key. An alias has the line of its anchor, an override
    // none.
    if (problem.line > 0 && node.Mark().line >= problem.line) {
      problem.line = node.Mark().line + 1;
    }
    problem.key = std::move(key);
    problem.expected = std::move(expected);
    problem.found = std::move(found);
    problem.hint = std::move(hint);
    problems_.push_back(std::move(problem));
  }

  void add_data_set(const YAML::Node& node, const std::string& key, std::vector<DataSet>& sets) {
    DataSet set;
    if (node.IsScalar()) {
      set.path = node.Scalar();
    } else if (!node.IsMap()) {
      fail_at(node, key, "a path, or a mapping of path, weight and teacher", describe(node));
      return;
    }
    if (node.IsMap() && !read_data_set(node, key, set)) {
      return;
    }
    if (set.path.empty()) {
      fail_at(node, key, "the path of a token shard or of a folder of them", "none");
      return;
    }
    sets.push_back(std::move(set));
  }

  bool read_data_set(const YAML::Node& node, const std::string& key, DataSet& set) {
    static const std::vector<std::string> kKeys = {"path", "weight", "teacher"};
    const size_t before = problems_.size();
    std::vector<std::string> seen;
    for (const auto& item : node) {
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : describe(item.first);
      const std::string item_key = absl::StrCat(key, ".", name);
      if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
        fail_at(item.first, item_key, "one value", "a second one");
      } else if (name == "path" && item.second.IsScalar()) {
        set.path = item.second.Scalar();
      } else if (name == "path") {
        fail_at(item.second, item_key, "text", describe(item.second));
      } else if (name == "weight") {
        std::string why = "not a number";
        const auto weight =
            item.second.IsScalar() && !is_quoted(item.second) ? parse_real(item.second.Scalar(), &why) : std::nullopt;
        if (!weight || *weight <= 0 || *weight > kMostWeight) {
          fail_at(item.second, item_key, "a number above 0 and at most 1e+30", describe(item.second));
        } else {
          set.weight = *weight;
        }
      } else if (name == "teacher") {
        read_shares(item.second, item_key, set.teachers);
      } else {
        const std::string close = closest_name(name, kKeys);
        fail_at(
            item.first, item_key, "path, weight or teacher", "an unknown key",
            close.empty() ? "" : absl::StrCat("did you mean ", close, "?"));
      }
      seen.push_back(name);
    }
    return problems_.size() == before;
  }

  // A name, or a mapping of names to shares.
  void read_shares(const YAML::Node& node, const std::string& key, std::vector<data::TeacherShare>& shares) {
    if (node.IsScalar() && data::is_teacher_name(node.Scalar())) {
      shares = {{node.Scalar(), 1.0}};
      return;
    }
    if (!node.IsMap() || node.size() == 0) {
      fail_at(node, key, "the name of a teacher, or a mapping of names to shares", describe(node));
      return;
    }
    for (const auto& item : node) {
      std::string why = "not a number";
      const auto share =
          item.second.IsScalar() && !is_quoted(item.second) ? parse_real(item.second.Scalar(), &why) : std::nullopt;
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : describe(item.first);
      const auto same = [&](const data::TeacherShare& other) { return other.first == name; };
      if (!share || *share <= 0 || *share > kMostWeight) {
        fail_at(item.second, absl::StrCat(key, ".", name), "a number above 0 and at most 1e+30", describe(item.second));
      } else if (std::any_of(shares.begin(), shares.end(), same)) {
        fail_at(item.first, absl::StrCat(key, ".", name), "one share", "a second one");
      } else {
        shares.emplace_back(name, *share);
      }
    }
  }

  const Field& field_;
  const YAML::Node& node_;
  const Problem& place_;
  Config& config_;
  std::vector<Problem>& problems_;
};

} // namespace

std::string describe(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      return "nothing";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a mapping";
    case YAML::NodeType::Scalar:
      break;
  }
  std::string text = node.Scalar();
  const bool cut = text.size() > kMaxShown;
  if (cut) {
    text.resize(kMaxShown);
  }
  text = absl::Utf8SafeCEscape(text) + (cut ? "..." : "");
  std::string why;
  const bool number = !is_quoted(node) && parse_real(text, &why).has_value();
  return number || (!is_quoted(node) && (text == "true" || text == "false")) ? text : absl::StrCat("\"", text, "\"");
}

void assign(
    const Field& field, const YAML::Node& node, const Problem& place, Config& config, std::vector<Problem>& problems) {
  std::visit(Assignment(field, node, place, config, problems), field.kind);
}

} // namespace distill::config
