#include "trainer/config/rules.h"

#include <gmock/gmock.h>

#include "tests/trainer/config/config_test_util.h"
#include "trainer/config/dump.h"

namespace distill::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Rules, TheValidConfigurationHasNoProblem) {
  EXPECT_THAT(rule_problems({}), IsEmpty()) << report(rule_problems({}));
}

struct Broken {
  std::vector<std::string> overrides;
  const char* key;
  const char* expected;
};

class RulesBroken : public ::testing::TestWithParam<Broken> {};

TEST_P(RulesBroken, IsOneProblemOfTheKey) {
  const std::vector<Problem> problems = rule_problems(GetParam().overrides);
  ASSERT_THAT(problems, SizeIs(1)) << report(problems);
  EXPECT_EQ(problems[0].key, GetParam().key);
  EXPECT_THAT(problems[0].expected, HasSubstr(GetParam().expected));
}

// The dump of a run gives every key that has an effect in that run: an override may take it away.
TEST(Rules, ADumpMayHaveKeysThatAnOverrideLeavesWithoutEffect) {
  struct Change {
    std::vector<std::string> before; // of the run
    std::vector<std::string> after; // of the run that is begun from its dump
  };
  const std::vector<Change> changes{
      {{"teacher.source=cache", "teacher.cache=c", "cache.other_contexts=allow"}, {"teacher.source=model"}},
      {{"teacher.source=cache", "teacher.cache=c", "cache.kind=topk", "cache.topk=8"}, {"cache.kind=hidden"}},
      {{"teacher.dtype=float8", "float8.gate_tokens=100"}, {"teacher.dtype=auto"}},
      {{"teacher.dtype=float8", "teacher.float8_exceptions=[down]"}, {"teacher.dtype=auto"}},
      {{"student.dtype=float8", "float8.shadow_every=3"}, {"student.dtype=auto"}},
      {{"student.dtype=float8", "float8.weight_gradients=true"}, {"student.dtype=auto"}},
      {{}, {"loss.divergence=forward_kl"}},
      {{"loss.hard_weight=1", "loss.z_loss=1e-4"}, {"loss.hard_weight=0"}},
      {{}, {"teacher.path=null", "loss.divergence=none", "loss.hard_weight=1"}},
      {{"scheduler.type=wsd", "scheduler.decay_steps=10"}, {"scheduler.type=cosine"}},
      {{"eval.every=5", "eval.samples=2", "eval.sample_tokens=9"}, {"eval.samples=0"}},
      {{}, {"loss.chunk_size=128"}}, // the dump has the default loss.min_chunk_size, 256
      {{"loss.chunk_size=128"}, {}},
  };
  for (const Change& change : changes) {
    const ReadResult run = read_text(kValid, change.before);
    ASSERT_THAT(run.problems, IsEmpty());
    ASSERT_THAT(rule_problems(change.before), IsEmpty());
    const std::vector<Problem> problems = rule_problems(change.after, Purpose::kTrain, dump(run.config));
    EXPECT_THAT(problems, IsEmpty()) << report(problems);
  }
  // A key of the command line is the user's, whatever the file is.
  EXPECT_THAT(rule_problems({"loss.skew_alpha=0.2"}, Purpose::kTrain, dump(read_text(kValid).config)), SizeIs(1));
}

INSTANTIATE_TEST_SUITE_P(
    Table, RulesBroken,
    ::testing::Values(
        Broken{{"student.path=null"}, "student.path", "the folder of the model"},
        Broken{{"data.train=null"}, "data.train", "token shards to train on"},
        Broken{{"run.dir=null"}, "run.dir", "the run folder"},
        Broken{{"train.steps=null"}, "train.steps", "exactly one"},
        Broken{{"train.tokens=1e6"}, "train.steps", "exactly one"},
        Broken{{"train.epochs=1.5"}, "train.steps", "exactly one of train.steps, train.tokens and train.epochs"},
        Broken{{"train.epochs=1", "train.tokens=5", "train.steps=null"}, "train.steps", "exactly one"},
        Broken{{"train.micro_batch_size=3"}, "train.global_batch_size", "a multiple of train.micro_batch_size, 3"},
        Broken{{"train.micro_batch_size=16"}, "train.global_batch_size", "a multiple"},
        Broken{{"teacher.path=null"}, "teacher.path", "a teacher for the divergence"},
        Broken{{"loss.soft_weight=0"}, "loss.hard_weight", "a loss that is not zero"},
        Broken{{"loss.divergence=none", "loss.beta=null"}, "loss.hard_weight", "a loss that is not zero"},
        Broken{{"loss.divergence=forward_kl"}, "loss.beta", "only when loss.divergence is jsd"},
        Broken{{"loss.skew_alpha=0.2"}, "loss.skew_alpha", "only when loss.divergence is skew_forward_kl"},
        Broken{
            {"loss.divergence=none", "loss.beta=null", "loss.hard_weight=1", "loss.temperature=2"},
            "loss.temperature",
            "only when loss.divergence is not none"},
        Broken{{"loss.label_smoothing=0.1"}, "loss.label_smoothing", "only when loss.hard_weight is above 0"},
        Broken{{"loss.z_loss=1e-4"}, "loss.z_loss", "only when loss.hard_weight is above 0"},
        Broken{
            {"teacher.path=null", "teacher.dtype=float32", "loss.soft_weight=0", "loss.hard_weight=1"},
            "teacher.dtype",
            "only when there is a teacher"},
        Broken{{"eval.samples=2", "data.eval=[x]"}, "eval.samples", "evaluations, after which"},
        Broken{
            {"eval.samples=2", "data.eval=[x]", "eval.every=5", "eval.sample_tokens=128"},
            "eval.sample_tokens",
            "fewer than data.seq_len, 128"},
        Broken{{"eval.sample_tokens=5"}, "eval.sample_tokens", "only when eval.samples is above 0"},
        Broken{{"scheduler.warmup_steps=100"}, "scheduler.warmup_steps", "fewer than the run's 100 steps"},
        Broken{{"scheduler.decay_steps=10"}, "scheduler.decay_steps", "only when scheduler.type is wsd"},
        Broken{{"scheduler.type=wsd", "scheduler.decay_steps=91"}, "scheduler.decay_steps", "at most 90"},
        Broken{{"scheduler.type=constant", "scheduler.min_lr_ratio=0.1"}, "scheduler.min_lr_ratio", "not constant"},
        Broken{{"data.eval=null", "eval.every=5"}, "data.eval", "held-out token shards"},
        Broken{{"data.eval=null", "eval.at_start=true"}, "data.eval", "held-out token shards"},
        Broken{{"loss.chunk_size=64", "loss.min_chunk_size=128"}, "loss.min_chunk_size", "at most loss.chunk_size"},
        Broken{
            {"parallel.processes=4", "parallel.replicate=3"},
            "parallel.replicate",
            "a divisor of parallel.processes, 4"},
        Broken{
            {"parallel.processes=4", "parallel.shard=3"},
            "parallel.shard",
            "4: parallel.processes, 4, divided by parallel.replicate"},
        Broken{
            {"parallel.processes=4", "parallel.shard=4", "parallel.replicate=2"},
            "parallel.shard",
            "2: parallel.processes, 4, divided by parallel.replicate"},
        Broken{{"parallel.prefetch=3", "parallel.slots=3"}, "parallel.slots", "at least 4: parallel.prefetch blocks"},
        Broken{{"parallel.processes=3"}, "train.global_batch_size", "a multiple of 6, 3 ranks"},
        Broken{{"parallel.shard=8"}, "train.global_batch_size", "a multiple of 16, 8 ranks"},
        Broken{{"parallel.shard=1048576", "parallel.replicate=1048576"}, "train.global_batch_size", "a multiple of"},
        Broken{{"parallel.replicate=8"}, "train.global_batch_size", "a multiple of 16, 8 copies"}));

class RulesAllowed : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(RulesAllowed, IsNoProblem) {
  const std::vector<Problem> problems = rule_problems(GetParam());
  EXPECT_THAT(problems, IsEmpty()) << report(problems);
}

INSTANTIATE_TEST_SUITE_P(
    Table, RulesAllowed,
    ::testing::Values(
        std::vector<std::string>{"teacher.path=null", "loss.divergence=none", "loss.beta=null", "loss.hard_weight=1"},
        std::vector<std::string>{"teacher.path=null", "loss.soft_weight=0", "loss.hard_weight=1"},
        std::vector<std::string>{"train.steps=null", "train.tokens=1e6"},
        std::vector<std::string>{"train.steps=null", "train.epochs=0.5"},
        std::vector<std::string>{"scheduler.type=wsd", "scheduler.decay_steps=90"},
        std::vector<std::string>{"scheduler.warmup_steps=99"}, std::vector<std::string>{"data.eval=null"},
        std::vector<std::string>{"loss.chunk_size=64"}, std::vector<std::string>{"parallel.processes=4"},
        std::vector<std::string>{"parallel.processes=4", "parallel.replicate=2"},
        std::vector<std::string>{"parallel.processes=4", "parallel.shard=2", "parallel.replicate=2"},
        std::vector<std::string>{"parallel.shard=2", "parallel.replicate=2"},
        std::vector<std::string>{"train.device=cpu", "train.dtype=bfloat16"}, std::vector<std::string>{"loss.beta=0"},
        std::vector<std::string>{"loss.beta=1"}));

// kValid's global batch of 8 in micro-batches of 2 is for 1, 2 or 4 ranks.
TEST(Rules, LaunchedRanksAreTheOnesThatCount) {
  const auto problems = [](int64_t ranks, const std::vector<std::string>& overrides) {
    const ReadResult result = read_text(kValid, overrides);
    return check_rules(result.config, {"test.yaml", Purpose::kTrain, result.origins, {}, ranks});
  };
  EXPECT_THAT(problems(4, {}), IsEmpty());
  EXPECT_THAT(problems(4, {"parallel.processes=3"}), IsEmpty()) << "a launcher's ranks take its place";
  EXPECT_THAT(problems(4, {"parallel.shard=2", "parallel.replicate=2"}), IsEmpty());
  for (const auto& [overrides, key] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"parallel.shard=2"}, "parallel.shard"},
           {{"parallel.replicate=3"}, "parallel.replicate"},
           {{"train.micro_batch_size=4"}, "train.global_batch_size"}}) {
    const std::vector<Problem> found = problems(4, overrides);
    ASSERT_THAT(found, SizeIs(1)) << report(found);
    EXPECT_EQ(found[0].key, key);
  }
  EXPECT_THAT(problems(4, {"parallel.replicate=3"})[0].expected, HasSubstr("the 4 ranks that were launched"));
}

TEST(Rules, EvaluationNeedsDataEvalAndNothingOfTraining) {
  EXPECT_THAT(rule_problems({"data.train=null", "train.steps=null", "run.dir=null"}, Purpose::kEvaluate), IsEmpty());
  const std::vector<Problem> problems = rule_problems({"data.eval=null"}, Purpose::kEvaluate);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].key, "data.eval");
}

TEST(Rules, QuantizingNeedsTextOfAnyKind) {
  EXPECT_THAT(rule_problems({"data.eval=null"}, Purpose::kQuantize), IsEmpty());
  EXPECT_THAT(rule_problems({"data.train=null", "train.steps=null", "run.dir=null"}, Purpose::kQuantize), IsEmpty());
  const std::vector<Problem> problems = rule_problems({"data.eval=null", "data.train=null"}, Purpose::kQuantize);
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].key, "data.eval");
  EXPECT_THAT(problems[0].expected, HasSubstr("data.train"));
}

TEST(Rules, AKeyThatCouldNotBeReadBreaksNoRuleAsWell) {
  EXPECT_THAT(rule_problems({"train.steps=many"}), SizeIs(1));
  EXPECT_THAT(rule_problems({"student.path=null", "student.pth=x"}), SizeIs(1));
  EXPECT_THAT(rule_problems({}, Purpose::kTrain, "loss: {beta: [}"), SizeIs(1));
  EXPECT_THAT(rule_problems({}, Purpose::kTrain, ""), SizeIs(1));
}

TEST(Rules, AProblemStandsWhereTheKeyWasGiven) {
  Problem problem = rule_problems({"train.micro_batch_size=3"}).at(0);
  EXPECT_EQ(problem.file, "test.yaml");
  EXPECT_EQ(problem.line, 15);
  problem = rule_problems({"train.global_batch_size=7"}).at(0);
  EXPECT_EQ(problem.file, "--set");
}

TEST(Rules, AnEvaluationWithoutATeacherNeedsNoLoss) {
  const std::vector<std::string> no_teacher = {"teacher.path=null"};
  EXPECT_THAT(rule_problems(no_teacher, Purpose::kEvaluate), IsEmpty());
  EXPECT_THAT(rule_problems(no_teacher, Purpose::kTrain), SizeIs(1));
}

} // namespace
} // namespace distill::config
