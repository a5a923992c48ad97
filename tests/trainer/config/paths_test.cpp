#include "trainer/config/paths.h"

#include <gmock/gmock.h>

#include "tests/trainer/config/config_test_util.h"

namespace distill::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class Paths : public ::testing::Test {
 protected:
  Paths() {
    for (const char* model : {"student", "teacher"}) {
      folder_.write(absl::StrCat(model, "/config.json"), "{}");
      folder_.write(absl::StrCat(model, "/model.safetensors"), "");
    }
    folder_.write("train/a.dtok", "");
    folder_.write("eval.dtok", "");
    folder_.write("empty/readme.txt", "");
    config_.student.path = folder_ / "student";
    config_.teacher.path = folder_ / "teacher";
    config_.data.train = {{folder_ / "train", 1.0}};
    config_.data.eval = {{folder_ / "eval.dtok", 1.0}};
    config_.run.dir = folder_ / "run";
  }

  std::vector<Problem> check(Purpose purpose = Purpose::kTrain) {
    return check_paths(config_, {"test.yaml", purpose, {}, {}});
  }
  void expect_one(const std::string& key, const std::string& says) {
    const std::vector<Problem> problems = check();
    ASSERT_THAT(problems, SizeIs(1)) << report(problems);
    EXPECT_EQ(problems[0].key, key);
    EXPECT_THAT(format(problems[0]), HasSubstr(says));
  }

  TemporaryFolder folder_;
  Config config_;
};

TEST_F(Paths, EverythingThereIsNoProblem) {
  EXPECT_THAT(check(), IsEmpty()) << report(check());
}

TEST_F(Paths, ModelFolderMustExist) {
  config_.student.path = folder_ / "nowhere";
  expect_one("student.path", "found nothing at");
  config_.student.path = "nowhere";
  expect_one("student.path", "relative to the working directory, /");
  config_.student.path = "~/student";
  expect_one("student.path", "~ is not expanded");
  config_.student.path = folder_ / "eval.dtok";
  expect_one("student.path", "found the file");
}

TEST_F(Paths, AnIdOfTheHubIsAnsweredWithTheDownload) {
  config_.student.path = "some-org/Llama-3.2-1B";
  expect_one("student.path", "run `hf download some-org/Llama-3.2-1B --local-dir models/Llama-3.2-1B`");
  expect_one("student.path", "write student: {path: models/Llama-3.2-1B}");
  config_.student.path = folder_ / "student";
  config_.teacher.path = "some-org/Llama-3.2-1B";
  expect_one("teacher.path", "write teacher: {path: models/Llama-3.2-1B}");
  for (const char* path : {"models/Llama-3.2-1B", "./org/name", "a/b/c", "org/", "/org/name", "../name"}) {
    config_.teacher.path = path;
    ASSERT_THAT(check(), SizeIs(1));
    EXPECT_THAT(format(check()[0]), Not(HasSubstr("hf download"))) << path;
  }
}

TEST_F(Paths, ATextIsAnsweredWithTheCallThatTokenisesIt) {
  folder_.write("corpus/a.jsonl", "{}");
  for (const char* name : {"corpus/a.jsonl", "corpus"}) {
    config_.data.train = {{folder_ / name, 1.0}};
    expect_one("data.train", absl::StrCat("scripts/tokenize.py --tokenizer ", config_.student.path));
  }
  folder_.write("shard.txt", "DISTTOKS and so on");
  config_.data.train = {{folder_ / "shard.txt", 1.0}};
  EXPECT_THAT(check(), IsEmpty()); // whatever its name
}

TEST_F(Paths, ModelFolderMustHoldConfigAndWeights) {
  config_.teacher.path = folder_ / "empty";
  expect_one("teacher.path", "config.json, found none");
  folder_.write("empty/config.json", "{}");
  expect_one("teacher.path", "teacher.init: random");
  folder_.write("empty/pytorch_model.bin", "");
  expect_one("teacher.path", "save the model again with transformers");
  config_.teacher.init = ModelInit::kRandom;
  EXPECT_THAT(check(), IsEmpty());
  config_.teacher.init = ModelInit::kPretrained;
  folder_.write("empty/model.safetensors.index.json", "{}");
  EXPECT_THAT(check(), IsEmpty());
}

TEST_F(Paths, TokenizerIsAFileOrAFolderWithTokenizerJson) {
  config_.student.tokenizer = folder_ / "empty";
  expect_one("student.tokenizer", "tokenizer.json, found none");
  folder_.write("empty/tokenizer.json", "{}");
  EXPECT_THAT(check(), IsEmpty());
  config_.student.tokenizer = folder_ / "empty/tokenizer.json";
  EXPECT_THAT(check(), IsEmpty());
  config_.student.tokenizer = folder_ / "gone.json";
  expect_one("student.tokenizer", "nothing at");
}

TEST_F(Paths, DataIsAShardOrAFolderOfShards) {
  config_.data.train.push_back({folder_ / "gone.dtok", 1.0});
  expect_one("data.train[1]", "nothing at");
  config_.data.train = {{folder_ / "empty", 1.0}};
  expect_one("data.train", "no *.dtok in");
}

TEST_F(Paths, RunFolderMustNotBeAFile) {
  config_.run.dir = folder_ / "eval.dtok";
  expect_one("run.dir", "found the file");
}

TEST_F(Paths, EvaluationLooksAtNoTrainingData) {
  config_.data.train = {{"gone", 1.0}};
  config_.run.dir = folder_ / "eval.dtok";
  EXPECT_THAT(check(Purpose::kEvaluate), IsEmpty());
}

TEST_F(Paths, LoadReportsReadingRulesAndPathsTogether) {
  folder_.write(
      "config.yaml", absl::StrCat("student: {path: ", folder_ / "nowhere", "}\nloss: {betta: 1}\ntrain: {steps: 1}\n"));
  const absl::Status status =
      load(folder_ / "config.yaml", std::vector<std::string>{"optimizer.lr=fast"}, Purpose::kTrain).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("loss.betta"));
  EXPECT_THAT(text, HasSubstr("--set: optimizer.lr"));
  EXPECT_THAT(text, HasSubstr("data.train: expected token shards"));
  EXPECT_THAT(text, HasSubstr("teacher.path: expected a teacher"));
  EXPECT_THAT(text, HasSubstr("config.yaml:1: student.path: expected a Hugging Face folder"));
  EXPECT_THAT(text, HasSubstr("run.dir"));
  EXPECT_THAT(text, HasSubstr("6 problems in the configuration:"));
}

} // namespace
} // namespace distill::config
