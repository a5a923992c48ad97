#include "trainer/config/reader.h"

#include <gmock/gmock.h>

#include "tests/trainer/config/config_test_util.h"

namespace distill::config {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(Reader, ReadsEveryKindOfValue) {
  const ReadResult result = read_text(R"(
student: {path: a/b, init: random}
data:
  train:
    - one.dtok
    - {path: "two words", weight: 2.5}
  eval: held_out
  shuffle: false
loss: {divergence: reverse_kl, logits_dtype: bfloat16, metrics: loss, chunk_size: 512}
train: {tokens: 1e9, micro_batch_size: 0x, seed: 1_000}
optimizer: {lr: 3e-4, beta2: .99}
)");
  ASSERT_THAT(result.problems, SizeIs(1)); // 0x
  EXPECT_EQ(result.problems[0].key, "train.micro_batch_size");
  const Config& config = result.config;
  EXPECT_EQ(config.student.path, "a/b");
  EXPECT_EQ(config.student.init, ModelInit::kRandom);
  ASSERT_THAT(config.data.train, SizeIs(2));
  EXPECT_EQ(config.data.train[0].path, "one.dtok");
  EXPECT_EQ(config.data.train[0].weight, 1.0);
  EXPECT_EQ(config.data.train[1].path, "two words");
  EXPECT_EQ(config.data.train[1].weight, 2.5);
  ASSERT_THAT(config.data.eval, SizeIs(1));
  EXPECT_EQ(config.data.eval[0].path, "held_out");
  EXPECT_FALSE(config.data.shuffle);
  EXPECT_EQ(config.loss.divergence, losses::Divergence::kReverseKl);
  EXPECT_EQ(config.loss.logits_dtype, losses::LogitsDtype::kBFloat16);
  EXPECT_EQ(config.loss.metrics, losses::MetricSet::kLoss);
  EXPECT_EQ(config.chunks.chunk_size, 512);
  EXPECT_EQ(config.train.tokens, 1'000'000'000);
  EXPECT_EQ(config.train.seed, 1000);
  EXPECT_EQ(config.train.micro_batch_size, 1);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.optimizer.beta2, 0.99);
  EXPECT_EQ(result.origins.at("loss.chunk_size").line, 9);
}

TEST(Reader, EveryDivergenceNameIsItsEnumerator) {
  const std::pair<const char*, losses::Divergence> names[] = {
      {"none", losses::Divergence::kNone},
      {"jsd", losses::Divergence::kJsd},
      {"forward_kl", losses::Divergence::kForwardKl},
      {"reverse_kl", losses::Divergence::kReverseKl},
      {"skew_forward_kl", losses::Divergence::kSkewForwardKl},
      {"skew_reverse_kl", losses::Divergence::kSkewReverseKl},
      {"total_variation", losses::Divergence::kTotalVariation}};
  for (const auto& [name, value] : names) {
    EXPECT_EQ(read_text(absl::StrCat("loss: {divergence: ", name, "}")).config.loss.divergence, value) << name;
  }
}

TEST(Reader, ReportsAllProblemsTogetherWithTheirLines) {
  const ReadResult result = read_text(R"(student:
  pth: x
loss:
  beta: 2
  temperature: hot
optimiser:
  lr: 1
train:
  steps: 5
  steps: 6
)");
  ASSERT_THAT(result.problems, SizeIs(5));
  EXPECT_EQ(result.problems[0].line, 2);
  EXPECT_EQ(result.problems[0].hint, "did you mean student.path?");
  EXPECT_EQ(result.problems[1].line, 4);
  EXPECT_EQ(result.problems[1].expected, "a number from 0 to 1");
  EXPECT_EQ(result.problems[1].found, "2");
  EXPECT_EQ(result.problems[2].line, 5);
  EXPECT_EQ(result.problems[2].found, "\"hot\" (text)");
  EXPECT_EQ(result.problems[3].line, 6);
  EXPECT_EQ(result.problems[3].hint, "did you mean optimizer?");
  EXPECT_EQ(result.problems[4].line, 10);
  EXPECT_THAT(result.problems[4].found, HasSubstr("first is on line 9"));
  EXPECT_THAT(report(result.problems), HasSubstr("5 problems"));
  EXPECT_THAT(
      report(result.problems), HasSubstr("\n  test.yaml:4: loss.beta: expected a number from 0 to 1, found 2\n"));
}

struct BadValue {
  const char* yaml;
  const char* key;
  const char* expected;
  const char* found;
};

class ReaderBadValue : public ::testing::TestWithParam<BadValue> {};

TEST_P(ReaderBadValue, IsOneProblemThatSaysWhatWasFound) {
  const BadValue& bad = GetParam();
  const ReadResult result = read_text(bad.yaml);
  ASSERT_THAT(result.problems, SizeIs(1)) << report(result.problems);
  EXPECT_EQ(result.problems[0].key, bad.key);
  EXPECT_THAT(result.problems[0].expected, HasSubstr(bad.expected));
  EXPECT_THAT(result.problems[0].found, HasSubstr(bad.found));
  EXPECT_EQ(result.problems[0].file, "test.yaml");
}

INSTANTIATE_TEST_SUITE_P(
    Table, ReaderBadValue,
    ::testing::Values(
        // Integers.
        BadValue{"train: {steps: 1.5}", "train.steps", "an integer", "1.5 (a fraction)"},
        BadValue{"train: {steps: many}", "train.steps", "an integer", "\"many\" (text)"},
        BadValue{"train: {steps: true}", "train.steps", "an integer", "a boolean"},
        BadValue{"train: {steps: \"10\"}", "train.steps", "an integer", "\"10\""},
        BadValue{"memory: {tile_tokens: -1}", "memory.tile_tokens", "auto, or an integer from 0", "-1"},
        BadValue{"memory: {tile_tokens: half}", "memory.tile_tokens", "auto, or an integer", "\"half\" (text)"},
        BadValue{"parallel: {slots: -1}", "parallel.slots", "auto, or an integer from 0 to 4096", "-1"},
        BadValue{"parallel: {slots: all}", "parallel.slots", "auto, or an integer", "\"all\" (text)"},
        BadValue{"train: {steps: auto}", "train.steps", "an integer", "\"auto\" (text)"},
        BadValue{"train: {steps: -1}", "train.steps", "an integer from 0", "-1"},
        BadValue{"train: {steps: 99999999999999999999}", "train.steps", "an integer", "beyond 64 bits"},
        BadValue{"train: {steps: 1e400}", "train.steps", "an integer", "beyond 64 bits"},
        BadValue{"train: {steps: 1e999999999999999999999}", "train.steps", "an integer", "beyond 64 bits"},
        BadValue{"train: {steps: 1e-3}", "train.steps", "an integer", "a fraction"},
        BadValue{"train: {steps: .inf}", "train.steps", "an integer", "not a finite number"},
        BadValue{"train: {steps: 0x10}", "train.steps", "an integer", "\"0x10\" (text)"},
        BadValue{"train: {steps: 1__0}", "train.steps", "an integer", "(text)"},
        BadValue{"train: {steps: [1]}", "train.steps", "an integer", "a list"},
        BadValue{"train: {steps: {a: 1}}", "train.steps", "an integer", "a mapping"},
        BadValue{"train:\n  steps:\n", "train.steps", "an integer", "nothing"},
        BadValue{"train: {steps: ~}", "train.steps", "an integer", "nothing"},
        BadValue{"data: {seq_len: 1}", "data.seq_len", "from 2", "1"},
        BadValue{"train: {micro_batch_size: 0}", "train.micro_batch_size", "from 1", "0"},
        BadValue{"loss: {memory_cap_mb: 0}", "loss.memory_cap_mb", "from 1", "0"},
        BadValue{"checkpoint: {keep: 0}", "checkpoint.keep", "from 1", "0"},
        // Numbers.
        BadValue{"optimizer: {lr: .nan}", "optimizer.lr", "a number above 0", "not a finite number"},
        BadValue{"optimizer: {lr: inf}", "optimizer.lr", "a number above 0", "not a finite number"},
        BadValue{"optimizer: {lr: 1e999}", "optimizer.lr", "a number above 0", "beyond double"},
        BadValue{"optimizer: {lr: 0}", "optimizer.lr", "above 0", "0"},
        BadValue{"optimizer: {lr: -1e-5}", "optimizer.lr", "above 0", "-1e-5"},
        BadValue{"optimizer: {lr: 1e-5x}", "optimizer.lr", "a number", "text"},
        BadValue{"optimizer: {lr: 1e}", "optimizer.lr", "a number", "text"},
        BadValue{"optimizer: {lr: '1e-5'}", "optimizer.lr", "a number", "\"1e-5\""},
        BadValue{"optimizer: {beta1: 1}", "optimizer.beta1", "below 1", "1"},
        BadValue{"loss: {temperature: 0}", "loss.temperature", "above 0", "0"},
        BadValue{"loss: {temperature: 1e-40}", "loss.temperature", "above 0, from 1e-10 to 1e+10", "1e-40"},
        BadValue{"loss: {temperature: 1e30}", "loss.temperature", "from 1e-10 to 1e+10", "1e30"},
        BadValue{
            "loss: {student_softcap: 1e-40}", "loss.student_softcap", "0, or a number above 0, from 1e-10", "1e-40"},
        BadValue{"loss: {student_softcap: -1}", "loss.student_softcap", "0, or a number above 0", "-1"},
        BadValue{"loss: {hard_weight: 1e30}", "loss.hard_weight", "from 0 to 1e+10", "1e30"},
        BadValue{"loss: {z_loss: -1}", "loss.z_loss", "from 0 to 1e+10", "-1"},
        BadValue{"loss: {chunk_size: 67108865}", "loss.chunk_size", "from 0 to 67108864", "67108865"},
        BadValue{"optimizer: {lr: 1e-40}", "optimizer.lr", "above 0, from 1e-20 to 1e+30", "1e-40"},
        BadValue{"optimizer: {eps: 1e-40}", "optimizer.eps", "above 0, from 1e-20 to 1e+30", "1e-40"},
        BadValue{"optimizer: {max_grad_norm: 1e-40}", "optimizer.max_grad_norm", "0, or a number above 0", "1e-40"},
        BadValue{"optimizer: {weight_decay: 1e40}", "optimizer.weight_decay", "from 0 to 1e+30", "1e40"},
        BadValue{"memory: {budget_gib: 1e30}", "memory.budget_gib", "from 0 to 1e+06", "1e30"},
        BadValue{"data: {train: {path: a, weight: 1e40}}", "data.train.weight", "at most 1e+30", "1e40"},
        BadValue{"loss: {beta: -0.1}", "loss.beta", "from 0 to 1", "-0.1"},
        BadValue{"loss: {label_smoothing: 1.0}", "loss.label_smoothing", "below 1", "1.0"},
        // Booleans.
        BadValue{"data: {shuffle: yes}", "data.shuffle", "true or false", "\"yes\""},
        BadValue{"data: {shuffle: 1}", "data.shuffle", "true or false", "1"},
        BadValue{"data: {shuffle: \"true\"}", "data.shuffle", "true or false", "\"true\""},
        // Choices.
        BadValue{"loss: {divergence: jds}", "loss.divergence", "one of none, jsd, forward_kl", "\"jds\""},
        BadValue{"loss: {divergence: [jsd]}", "loss.divergence", "one of", "a list"},
        BadValue{"loss: {divergence: 3}", "loss.divergence", "one of", "3"},
        BadValue{"loss: {divergence: }", "loss.divergence", "one of", "nothing"},
        BadValue{"loss: {metrics: none}", "loss.metrics", "one of all, loss", "\"none\""},
        // Activation policies.
        BadValue{
            "memory: {activation: kep}", "memory.activation", "auto, keep, recompute, offload, offload_input, or",
            "\"kep\""},
        BadValue{
            "memory: {activation: 'keep*,recompute'}", "memory.activation", "a list of them", "\"keep*,recompute\""},
        BadValue{"memory: {activation: [keep, keep]}", "memory.activation", "auto, keep", "a list"},
        BadValue{"memory: {activation: }", "memory.activation", "auto, keep", "nothing"},
        // Texts.
        BadValue{"student: {path: [a]}", "student.path", "text", "a list"},
        BadValue{"student: {path: {a: b}}", "student.path", "text", "a mapping"},
        BadValue{"student: {path: \"a\\0b\"}", "student.path", "text", "zero byte"},
        // Data sets.
        BadValue{"data: {train: [a, [b]]}", "data.train[1]", "a path", "a list"},
        BadValue{"data: {train: {path: a, wieght: 2}}", "data.train.wieght", "path, weight or teacher", "unknown"},
        BadValue{"data: {train: [{path: a, weight: 0}]}", "data.train[0].weight", "above 0", "0"},
        BadValue{"data: {train: [{path: a, weight: .inf}]}", "data.train[0].weight", "above 0", ".inf"},
        BadValue{"data: {train: [{path: a, weight: heavy}]}", "data.train[0].weight", "above 0", "heavy"},
        BadValue{"data: {train: [{path: a, path: b}]}", "data.train[0].path", "one value", "second"},
        BadValue{"data: {train: [{path: [a]}]}", "data.train[0].path", "text", "a list"},
        BadValue{"data: {train: [{weight: 1}]}", "data.train[0]", "the path of a token shard", "none"},
        BadValue{"data: {train: ~}", "data.train", "a path", "nothing"},
        BadValue{"data: {train: ''}", "data.train", "the path", "none"},
        // The file's shape.
        BadValue{"", "", "a YAML mapping of sections", "an empty file"},
        BadValue{"# only a comment\n", "", "a YAML mapping of sections", "an empty file"},
        BadValue{"- a\n- b\n", "", "a YAML mapping of sections", "a list"},
        BadValue{"just text", "", "a YAML mapping of sections", "\"just text\""},
        BadValue{"loss: [1]", "loss", "a mapping of keys", "a list"},
        BadValue{"loss: 3", "loss", "a mapping of keys", "3"},
        BadValue{"loss: {[a]: 1}", "loss", "the name of a key", "a list"},
        BadValue{"{a: 1}: 2", "", "the name of a section", "a mapping"},
        BadValue{"loss: {beta: 0.1}\nloss: {beta: 0.2}", "loss", "one value", "first is on line 1"},
        BadValue{"loss:\n\tbeta: 0.5\n", "", "spaces as indentation", "a tab"},
        BadValue{"loss: {beta: 0.5\n", "", "a YAML mapping", "does not parse"},
        BadValue{"loss: *nothing\n", "", "a YAML mapping", "does not parse"},
        BadValue{"loss:\n  beta: 0.5\n temperature: 1\n", "", "a YAML mapping", "does not parse"},
        BadValue{"run: {dir: a}\n---\nrun: {dir: b}\n", "", "a YAML mapping", "a second YAML document"},
        BadValue{", a\n", "", "a YAML mapping", "does not parse"}));

TEST(Reader, ManyOpenBracketsAreAProblemAndNotACrash) {
  EXPECT_THAT(read_text("loss: " + std::string(100000, '[')).problems, SizeIs(1));
  EXPECT_THAT(read_text("a: &a [*a]\n").problems, SizeIs(1));
}

TEST(Reader, BinaryFileIsAProblem) {
  const ReadResult result = read(std::string_view("PK\0\1", 4), "model.safetensors", {});
  ASSERT_THAT(result.problems, SizeIs(1));
  EXPECT_EQ(result.problems[0].found, "a binary file");
}

TEST(Reader, NothingIsTheEmptyTextAndAnEmptySectionIsFine) {
  const ReadResult result = read_text("teacher:\n  path:\nloss:\n  # beta: 1\nrun: ~\n");
  EXPECT_THAT(result.problems, SizeIs(0)) << report(result.problems);
  EXPECT_EQ(result.config.teacher.path, "");
}

TEST(Reader, AnchorsAndMergeKeysWork) {
  const ReadResult result = read_text(R"(
student: &model
  path: one
  dtype: bfloat16
teacher:
  <<: *model
  path: two
)");
  ASSERT_THAT(result.problems, SizeIs(0)) << report(result.problems);
  EXPECT_EQ(result.config.student.path, "one");
  EXPECT_EQ(result.config.teacher.path, "two");
  EXPECT_EQ(result.config.teacher.dtype, ComputeDtype::kBFloat16);
}

TEST(Override, WinsOverTheFileAndTheLastOneWins) {
  const ReadResult result =
      read_text(kValid, {"loss.beta=0.25", "train.steps=7", "train.steps=1e3", "data.train=[a, {path: b, weight: 3}]"});
  ASSERT_THAT(result.problems, SizeIs(0)) << report(result.problems);
  EXPECT_EQ(result.config.loss.beta, 0.25);
  EXPECT_EQ(result.config.train.steps, 1000);
  ASSERT_THAT(result.config.data.train, SizeIs(2));
  EXPECT_EQ(result.config.data.train[1].weight, 3);
  EXPECT_EQ(result.origins.at("loss.beta").file, "--set");
}

TEST(Override, AListOfTextsMayBeOneText) {
  using ::testing::ElementsAre;
  const auto keys = [](const std::string& value) {
    return read_text(kValid, {"student.ignore_config_keys=" + value}).config.student.ignore_config_keys;
  };
  EXPECT_THAT(keys("[a, b]"), ElementsAre("a", "b"));
  EXPECT_THAT(keys("a"), ElementsAre("a"));
  EXPECT_THAT(keys("[]"), SizeIs(0));
  EXPECT_THAT(read_text(kValid, {"student.ignore_config_keys=[a, {b: 1}]"}).problems, SizeIs(1));
  EXPECT_THAT(read_text(kValid, {"student.ignore_config_keys={a: 1}"}).problems, SizeIs(1));
}

TEST(Override, ValueMayHoldEqualsSignsAndHashes) {
  EXPECT_EQ(read_text(kValid, {"run.dir=runs/lr=1e-4#2"}).config.run.dir, "runs/lr=1e-4#2");
}

TEST(Override, NullPutsTheDefaultBack) {
  const ReadResult result = read_text(kValid, {"loss.beta=0.1", "loss.beta=null", "data.eval=null", "train.steps=~"});
  ASSERT_THAT(result.problems, SizeIs(0)) << report(result.problems);
  EXPECT_EQ(result.config.loss.beta, 0.5);
  EXPECT_THAT(result.config.data.eval, SizeIs(0));
  EXPECT_EQ(result.config.train.steps, 0);
  EXPECT_EQ(result.origins.count("loss.beta"), 0);
}

struct BadOverride {
  const char* text;
  const char* key;
  const char* says;
};

class OverrideBad : public ::testing::TestWithParam<BadOverride> {};

TEST_P(OverrideBad, IsOneProblemOfTheCommandLine) {
  const ReadResult result = read_text(kValid, {GetParam().text});
  ASSERT_THAT(result.problems, SizeIs(1));
  EXPECT_EQ(result.problems[0].file, "--set");
  EXPECT_EQ(result.problems[0].line, 0);
  EXPECT_EQ(result.problems[0].key, GetParam().key);
  EXPECT_THAT(format(result.problems[0]), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    Table, OverrideBad,
    ::testing::Values(
        BadOverride{"loss.beta", "", "section.key=VALUE"}, BadOverride{"=3", "", "section.key=VALUE"},
        BadOverride{"", "", "section.key=VALUE"}, BadOverride{"loss.betta=1", "loss.betta", "did you mean loss.beta?"},
        BadOverride{"lr=1e-4", "lr", "did you mean optimizer.lr?"}, BadOverride{"loss=1", "loss", "a whole section"},
        BadOverride{"loss.lr=1", "loss.lr", "did you mean optimizer.lr?"},
        BadOverride{"loss.beta=", "loss.beta", "found nothing"},
        BadOverride{"loss.beta=3", "loss.beta", "expected a number from 0 to 1, found 3"},
        BadOverride{"loss.beta=[", "loss.beta", "does not parse"},
        BadOverride{"data.train=[a] b", "data.train", "a second YAML document"},
        BadOverride{"loss.beta=, 1", "loss.beta", "does not parse"},
        BadOverride{"data.train=[{weight: 3}]", "data.train[0]", "the path of a token shard"}));

TEST(ReadFile, SaysWhatIsWrongWithTheFile) {
  const TemporaryFolder folder;
  const auto found = [&](const std::string& path) { return read_file(path, {}).problems.at(0).found; };
  EXPECT_EQ(found(folder / "none.yaml"), "no such file");
  EXPECT_EQ(found(folder / "."), "a folder");
  folder.write("file", "loss: {beta: 0.5}");
  EXPECT_THAT(found(folder / "file/inside"), HasSubstr("no such file"));
  folder.write("big", std::string(2 << 20, '#'));
  EXPECT_THAT(found(folder / "big"), HasSubstr("which is no configuration"));
  EXPECT_THAT(read_file(folder / "file", {}).problems, SizeIs(0));
}

} // namespace
} // namespace distill::config
