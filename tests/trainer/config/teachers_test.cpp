#include "trainer/config/teachers.h"

#include <gmock/gmock.h>

#include "tests/trainer/config/config_test_util.h"
#include "trainer/config/dump.h"

namespace distill::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kTwo[] = R"(
student: {path: s}
teachers:
  - name: math
    path: m
    adapter: a
    loss: {divergence: forward_kl, temperature: 2}
    parallel: {shard_teacher: false}
  - {name: code, source: cache, cache: {path: c, kind: topk}}
data:
  train: [{path: x, weight: 3, teacher: math}, {path: y, teacher: {math: 1, code: 3}}]
loss: {divergence: jsd, beta: 0.25}
)";

std::string problems_of(const std::string& yaml, Purpose purpose = Purpose::kTrain) {
  ReadResult result = read(yaml, "f.yaml", {});
  std::vector<Problem> problems = result.problems;
  const CheckContext context{"f.yaml", purpose, result.origins, suspect_keys(problems)};
  for (Problem& problem : check_rules(result.config, context)) {
    problems.push_back(std::move(problem));
  }
  return problems.empty() ? "" : report(problems);
}

TEST(Teachers, EachIsTheRunsConfigurationWithItsKeys) {
  const ReadResult result = read(kTwo, "f.yaml", {});
  ASSERT_THAT(result.problems, IsEmpty()) << report(result.problems);
  const Config& config = result.config;
  EXPECT_TRUE(config.has_list() && config.has_teacher());
  EXPECT_THAT(config.teacher_names(), ::testing::ElementsAre("math", "code"));
  const std::vector<Config> own = configs_of_teachers(config);
  ASSERT_EQ(own.size(), 2U);
  EXPECT_FALSE(own[0].has_list());
  EXPECT_EQ(own[0].this_teacher, 0);
  EXPECT_EQ(own[0].teacher.path, "m");
  EXPECT_EQ(own[0].teacher.adapter, "a");
  EXPECT_EQ(own[0].loss.divergence, losses::Divergence::kForwardKl);
  EXPECT_EQ(own[0].loss.temperature, 2);
  EXPECT_FALSE(own[0].parallel.shard_teacher);
  EXPECT_EQ(own[1].teacher.cache, "c");
  EXPECT_TRUE(own[1].teacher.reads_cache());
  EXPECT_EQ(own[1].cache.kind, CacheKind::kTopK);
  EXPECT_EQ(own[1].loss.divergence, losses::Divergence::kJsd);
  EXPECT_EQ(own[1].loss.beta, 0.25);
  EXPECT_TRUE(own[1].parallel.shard_teacher);
  EXPECT_EQ(configs_of_teachers(Config{}).size(), 1U);
}

TEST(Teachers, TheDumpReadsBackEqual) {
  const ReadResult first = read(kTwo, "f.yaml", {});
  const std::string text = dump(first.config);
  const ReadResult again = read(text, "dump.yaml", {});
  EXPECT_THAT(again.problems, IsEmpty()) << report(again.problems);
  EXPECT_EQ(dump(again.config), text);
  EXPECT_THAT(differences(first.config, again.config), IsEmpty());
  Config other = first.config;
  other.teachers[0].keys.back().value = "true";
  EXPECT_THAT(differences(first.config, other), ::testing::ElementsAre(HasSubstr("teachers: [{")));
  EXPECT_THAT(
      text, HasSubstr("\nteachers: [{name: \"math\", path: \"m\", adapter: \"a\", loss: {divergence: forward_kl"));
}

TEST(Teachers, AnOverrideGivesTheWholeList) {
  const ReadResult result = read(kTwo, "f.yaml", std::vector<std::string>{"teachers=[{name: one, path: p}]"});
  ASSERT_THAT(result.problems, IsEmpty()) << report(result.problems);
  EXPECT_THAT(result.config.teacher_names(), ::testing::ElementsAre("one"));
}

TEST(Teachers, TheSharesAreThoseThatTheDataSetsSay) {
  const Config config = read(kTwo, "f.yaml", {}).config;
  const std::vector<double> shares = shares_of_teachers(config);
  EXPECT_DOUBLE_EQ(shares[0], 3.25 / 4);
  EXPECT_DOUBLE_EQ(shares[1], 0.75 / 4);
  EXPECT_THAT(shares_of_teachers(Config{}), ::testing::ElementsAre(1.0));
}

TEST(Teachers, ProblemsNameTheEntry) {
  const std::string head = "student: {path: s}\nrun: {dir: r}\ndata: {train: x}\ntrain: {steps: 1}\n";
  EXPECT_THAT(problems_of(head + "teachers: {name: a, path: p}"), HasSubstr("teachers: expected a list of teachers"));
  EXPECT_THAT(problems_of(head + "teachers: [{path: p}]"), HasSubstr("teachers[0].name: expected the name"));
  EXPECT_THAT(problems_of(head + "teachers: [{name: a b, path: p}]"), HasSubstr("1 to 64 letters, digits or _.-"));
  EXPECT_THAT(
      problems_of(head + "teachers: [{name: a, path: p}, {name: a, path: q}]"),
      HasSubstr("teachers[1].name: expected another name"));
  EXPECT_THAT(
      problems_of(head + "teachers: [{name: a, pth: p}]"), HasSubstr("teachers[0].pth: expected a key of a teacher"));
  EXPECT_THAT(
      problems_of(head + "teachers: [{name: a, path: p, cache: {path: c, path: d}}]"), HasSubstr("a second one"));
  EXPECT_THAT(
      problems_of(head + "teachers:\n  - name: a\n    path: p\n    loss: {temperature: 0}"),
      HasSubstr("f.yaml:8: teachers[0].loss.temperature: expected"));
  EXPECT_THAT(
      problems_of(head + "teachers: [{name: a, path: p, loss: {beta: 0.2, divergence: forward_kl}}]"),
      HasSubstr("teachers[0] (a) loss.beta: expected this key only when loss.divergence is jsd"));
  EXPECT_THAT(
      problems_of(head + "teachers: [{name: a, path: p}]\nteacher: {path: q}"),
      HasSubstr("teachers: expected either teacher or teachers"));
  EXPECT_THAT(
      problems_of("student: {path: s}\nrun: {dir: r}\ndata: {train: {path: x, teacher: b}}\ntrain: {steps: 1}\n"
                  "teachers: [{name: a, path: p}]"),
      HasSubstr("data.train: expected one of the teachers a, found x: teacher b"));
  EXPECT_EQ(problems_of(head + "teachers: [{name: a, path: p}]"), "");
  // A key of another section that has an effect with one of the teachers is no mistake.
  EXPECT_EQ(
      problems_of(
          head + "teachers: [{name: a, path: p}, {name: b, path: q, dtype: float8}]\nfloat8: {max_mean_kl: 0.1}"),
      "");
  EXPECT_THAT(
      problems_of(head + "teachers: [{name: a, path: p}]\nfloat8: {max_mean_kl: 0.1}"),
      HasSubstr("float8.max_mean_kl: expected this key only when"));
}

TEST(Teachers, ACaptureNeedsTheNameOfOne) {
  const auto chosen = [](const std::string& name) {
    return check(read(kTwo, "f.yaml", {}), "f.yaml", Purpose::kCapture, /*ranks=*/0, name);
  };
  EXPECT_THAT(std::string(chosen("").status().message()), HasSubstr("--teacher: expected the name of one of the"));
  EXPECT_THAT(std::string(chosen("law").status().message()), HasSubstr("math or code, found law"));
  // What is wrong with the one that is named is told of it, in the keys of a run with it alone.
  EXPECT_THAT(std::string(chosen("code").status().message()), HasSubstr("teacher.path"));
  EXPECT_EQ(std::string(chosen("code").status().message()).find("law"), std::string::npos);
}

} // namespace
} // namespace distill::config
