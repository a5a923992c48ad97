#include "trainer/config/dump.h"

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>

#include <set>

#include "tests/trainer/config/config_test_util.h"
#include "trainer/config/field.h"
#include "trainer/config/help.h"

namespace distill::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A value of the field that is not the default.
std::string another_value(const Field& field) {
  if (std::holds_alternative<Boolean>(field.kind)) {
    return to_yaml(field, {}) == "true" ? "false" : "true";
  }
  if (const auto* integer = std::get_if<Integer>(&field.kind)) {
    if (integer->or_auto && to_yaml(field, {}) != "auto") {
      return "auto";
    }
    const std::string most = absl::StrCat(std::min<int64_t>(integer->max, 777));
    return to_yaml(field, {}) == most ? absl::StrCat(integer->min) : most;
  }
  if (std::holds_alternative<Real>(field.kind)) {
    return "0.12345678901234567";
  }
  if (std::holds_alternative<Text>(field.kind)) {
    return "\"a b: #'\\\"\\\\ \\u00e9\\n\\t{]\"";
  }
  if (std::holds_alternative<Texts>(field.kind)) {
    return "[one, \"two, three\"]";
  }
  if (const auto* choice = std::get_if<Choice>(&field.kind)) {
    return choice->names.back() == to_yaml(field, {}) ? choice->names.front() : choice->names.back();
  }
  if (const auto* policies = std::get_if<BlockPolicies>(&field.kind)) {
    return policies->example;
  }
  if (std::holds_alternative<TeacherList>(field.kind)) {
    return "[{name: one, path: \"two, three\", loss: {temperature: 2}}, {name: b, cache: {path: c, kind: topk}}]";
  }
  return "[one, {path: \"two, three\", weight: 0.1, teacher: {math: 1, code: 0.3}}]";
}

TEST(Dump, OfTheDefaultsReadsBackEqual) {
  const ReadResult back = read_text(dump({}));
  EXPECT_THAT(back.problems, IsEmpty()) << report(back.problems);
  EXPECT_THAT(differences({}, back.config), IsEmpty());
}

TEST(Dump, OfEveryKeyChangedReadsBackEqual) {
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) {
      const ReadResult changed = read_text(kValid, {field.key() + "=" + another_value(field)});
      ASSERT_THAT(changed.problems, IsEmpty()) << report(changed.problems);
      EXPECT_NE(to_yaml(field, changed.config), to_yaml(field, {})) << field.key();
      if (!field.applies(changed.config)) {
        continue;
      }
      const ReadResult back = read_text(dump(changed.config));
      EXPECT_THAT(back.problems, IsEmpty()) << report(back.problems);
      EXPECT_THAT(differences(changed.config, back.config), IsEmpty()) << dump(changed.config);
    }
  }
}

TEST(Dump, OfAValidConfigurationPassesTheRules) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {},
           {"loss.beta=null", "loss.divergence=forward_kl"},
           {"loss.beta=null", "loss.divergence=none", "loss.hard_weight=1", "teacher.path=null"},
           {"scheduler.type=constant"}}) {
    ASSERT_THAT(rule_problems(overrides), IsEmpty());
    const std::string text = dump(read_text(kValid, overrides).config);
    EXPECT_THAT(rule_problems({}, Purpose::kTrain, text), IsEmpty()) << text;
  }
}

TEST(Dump, IsWrittenWholeAndOverwrites) {
  const TemporaryFolder folder;
  const std::string path = folder / "config.yaml";
  ASSERT_TRUE(write_config({}, path).ok());
  Config config;
  config.run.dir = "elsewhere";
  ASSERT_TRUE(write_config(config, path).ok());
  EXPECT_EQ(read_file(path, {}).config.run.dir, "elsewhere");
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_FALSE(write_config(config, folder / "no/such/folder.yaml").ok());
}

TEST(Differences, NamesKeysWithBothValues) {
  Config after;
  after.loss.beta = 0.25;
  after.data.train = {{"a", 2.0}};
  EXPECT_THAT(
      differences({}, after), ElementsAre("data.train: [] -> [{path: \"a\", weight: 2}]", "loss.beta: 0.5 -> 0.25"));
}

TEST(Help, ListsEveryKeyOnceWithTypeDefaultAndMeaning) {
  std::multiset<std::string> rows;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(help_text(), '\n'))) {
    if (line.rfind("  ", 0) == 0 && line.size() > 2 && line[2] != ' ') {
      rows.insert(line.substr(2, line.find(' ', 2) - 2));
    }
    EXPECT_LE(line.size(), 120) << line;
  }
  size_t fields = 0;
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) {
      ++fields;
      EXPECT_EQ(rows.count(field.key()), 1) << field.key();
      EXPECT_GE(field.help.size(), 10) << field.key();
      EXPECT_EQ(section.is_value() ? field.name : field.section, section.name);
    }
  }
  EXPECT_EQ(rows.size(), fields);
}

TEST(Fields, ConditionsNameKeysThatExist) {
  for (const Section& section : sections()) {
    for (const Field& field : section.fields) {
      if (field.only_when.holds) {
        EXPECT_NE(find_field(field.only_when.key), nullptr) << field.key();
      }
    }
  }
}

} // namespace
} // namespace distill::config
