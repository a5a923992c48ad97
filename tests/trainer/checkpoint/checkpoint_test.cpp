#include <sys/syscall.h>
#include <unistd.h>

#include "data/base/checksum.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"

namespace {

std::vector<std::string> synced; // paths in order, of this program

} // namespace

// In the place of the C library's.
extern "C" int fsync(int fd) {
  const std::string link = absl::StrCat("/proc/self/fd/", fd);
  synced.push_back(std::filesystem::read_symlink(link).string());
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace distill::checkpoint {
namespace {

using testing::HasSubstr;

TEST_P(CheckpointTest, RoundTripIsBitForBit) {
  TrainedModel saved(1), other(2);
  ASSERT_FALSE(saved.same_as(other));
  at::manual_seed(99);
  const std::string folder = save(saved, 7);
  const at::Tensor expected = at::rand({4});
  const auto resumed = load(folder, other).value();
  EXPECT_EQ(resumed.state, state_);
  EXPECT_EQ(resumed.info.identity, info_.identity);
  EXPECT_EQ(resumed.info.config, info_.config);
  EXPECT_TRUE(saved.same_as(other));
  EXPECT_TRUE(at::equal(at::rand({4}), expected)) << "the random generator goes on where it was";
}

TEST_P(CheckpointTest, WhatIsSavedIsTheStateAtTheBegin) {
  TrainedModel run(1), as_it_was(1), resumed(3);
  CheckpointWriter writer(
      {.run_dir = dir_, .copy_memory = copy_memory(run, true)}, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(writer.begin(state_).ok());
  writer.before_update();
  for (int64_t i = 0; i < run.model.num_units(); ++i) {
    run.model.unit(i).master.fill_(0); // the next steps
    run.optimizer.moments(i).exp_avg.fill_(0);
  }
  const auto saved = writer.finish()->value();
  ASSERT_TRUE(load(saved.folder, resumed).ok());
  EXPECT_TRUE(resumed.same_as(as_it_was));
}

TEST_P(CheckpointTest, NewestCompleteIgnoresUnfinishedOnes) {
  EXPECT_FALSE(newest_complete(dir_).has_value());
  TrainedModel run(1);
  const std::string good = save(run, 9);
  const std::string torn = save(run, 10);
  fs::remove(fs::path(torn) / kMarkerFile);
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-11.partial");
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-x");
  EXPECT_EQ(newest_complete(dir_), good);
}

TEST_P(CheckpointTest, NewestIsByNumberNotByName) {
  TrainedModel run(1);
  save(run, 9);
  const std::string newest = save(run, 100);
  EXPECT_EQ(newest_complete(dir_), newest);
}

TEST_P(CheckpointTest, RetentionKeepsTheNewestAndNeverTheLastOneLess) {
  TrainedModel run(1);
  fs::create_directories(fs::path(dir_) / "checkpoints" / "step-1.partial"); // of a killed run
  for (const int64_t step : {1, 2, 3}) {
    save(run, step, /*keep=*/0);
  }
  EXPECT_EQ(checkpoints(), std::set<std::string>{"step-3"});
}

// A checkpoint beyond the one just saved belongs to another past of the run; it does not push out this one's.
TEST_P(CheckpointTest, RetentionCountsOnlyWhatLiesBeforeTheNewOne) {
  TrainedModel run(1);
  for (const int64_t step : {9, 1, 2}) {
    save(run, step, /*keep=*/2);
  }
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-1", "step-2", "step-9"}));
}

TEST_P(CheckpointTest, TheDataIsComparedAsOfTheStageItWasSavedIn) {
  TrainedModel run(1);
  state_.data_stages = {
      {0, 0, 32, data::PackingMode::kPack}, {3, 24, 64, data::PackingMode::kConcat, 80, {"a data set"}}};
  const std::string folder = save(run, 7);
  ResumingRun at_stage = same_run();
  at_stage.data_in = [&](const DataStage& stage) {
    return DataIdentity{stage == state_.data_stages.back() ? "a data set" : "data of another stage"};
  };
  const auto resumed = resume_from(folder, at_stage, run.model, run.optimizer, mesh_).value();
  EXPECT_EQ(resumed.state.data_stages, state_.data_stages);
}

// It has no stages: the length and packing are those of its configuration.
TEST_P(CheckpointTest, TheFormatBeforeIsReadWithTheStageOfItsConfiguration) {
  TrainedModel run(1);
  info_.config = "data: {seq_len: 48, packing: concat}\na_section_of_old: {}\n";
  const std::string folder = save(run, 7);
  auto index = read_index(folder).value();
  index.version = kOldestVersion;
  const std::string text = to_json(index);
  std::ofstream(fs::path(folder) / kIndexFile) << text;
  std::ofstream(fs::path(folder) / kMarkerFile)
      << "distill-checkpoint 2 index.json xxh3 " << base::checksum_text(base::checksum(text.data(), text.size()))
      << "\n";
  const auto resumed = load(folder, run).value();
  EXPECT_EQ(
      resumed.state.data_stages, (std::vector<DataStage>{{0, 0, 48, data::PackingMode::kConcat, 0, {"a data set"}}}));
}

TEST_P(CheckpointTest, AnotherRunIsRefusedWithBothValuesOfEverythingThatDiffers) {
  TrainedModel run(1), untouched(1);
  const std::string folder = save(run, 1);
  std::vector<ResumingRun> others(4, same_run());
  others[0].identity.model = "model B";
  others[1].identity.optimizer = "optimizer B";
  others[2].identity.tokenizer = "tokenizer B";
  others[3].data_in = [](const DataStage&) { return DataIdentity{"data B"}; };
  for (const ResumingRun& other : others) {
    const auto resumed = resume_from(folder, other, run.model, run.optimizer, mesh_);
    EXPECT_EQ(resumed.status().code(), absl::StatusCode::kFailedPrecondition);
    const std::string message(resumed.status().message());
    EXPECT_THAT(message, HasSubstr(" B\n"));
    EXPECT_THAT(message, testing::ContainsRegex("checkpoint: an? (model|optimizer|data set|tokenizer)"));
  }
  EXPECT_TRUE(run.same_as(untouched));
  EXPECT_TRUE(fs::exists(folder)) << "it is not damaged and must stay";
}

TEST_P(CheckpointTest, ARunThatMayGoOnWithOtherDataIsNotRefusedForThem) {
  TrainedModel run(1);
  const std::string folder = save(run, 7);
  ResumingRun other = same_run();
  other.data_in = [](const DataStage&) { return DataIdentity{"data B"}; };
  EXPECT_FALSE(resume_from(folder, other, run.model, run.optimizer, mesh_).ok());
  other.other_data_allowed = [](const TrainState&) { return true; };
  const auto resumed = resume_from(folder, other, run.model, run.optimizer, mesh_).value();
  EXPECT_EQ(resumed.state.data_stages, state_.data_stages);
  other.identity.tokenizer = "tokenizer B";
  EXPECT_FALSE(resume_from(folder, other, run.model, run.optimizer, mesh_).ok());
}

TEST_P(CheckpointTest, WhatBelongsToTheCheckpointIsSyncedBeforeItCounts) {
  TrainedModel run(1);
  bool complete_before = true;
  CheckpointWriterOptions options{.run_dir = dir_, .copy_memory = copy_memory(run, GetParam())};
  options.before_publish = [&] {
    complete_before = newest_complete(dir_).has_value();
    return absl::InternalError("metrics.jsonl: cannot sync");
  };
  CheckpointWriter writer(options, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(writer.begin(state_).ok());
  const auto saved = *writer.finish();
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr("metrics.jsonl"));
  EXPECT_FALSE(complete_before);
  EXPECT_FALSE(newest_complete(dir_).has_value());
}

TEST_P(CheckpointTest, EveryFileAndFolderIsOnTheDiskBeforeTheMarker) {
  TrainedModel run(1);
  synced.clear();
  const fs::path folder = save(run, 4), parent = fs::canonical(folder.parent_path());
  const std::string partial = (parent / "step-4.partial").string();
  const std::vector<std::string> expected{
      parent.parent_path().string(), // which holds the folder of checkpoints
      partial + "/rank-00000.safetensors",
      partial + "/index.json",
      partial,
      parent.string(),
      (parent / "step-4" / "COMPLETE").string(),
      (parent / "step-4").string()};
  EXPECT_EQ(synced, expected);
}

TEST_P(CheckpointTest, LaterCheckpointsAreSetAsideWhenTheRunGoesOnFromAnEarlierOne) {
  TrainedModel run(1);
  for (const int64_t step : {1, 2, 3}) {
    save(run, step, /*keep=*/9);
  }
  EXPECT_EQ(set_aside_after(dir_, 1)->size(), 2);
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-1", "step-2.superseded", "step-3.superseded"}));
  EXPECT_EQ(newest_complete(dir_), checkpoint_folder(dir_, 1).string());
}

INSTANTIATE_TEST_SUITE_P(, CheckpointTest, testing::Bool(), [](const auto& param) {
  return param.param ? "Async" : "Sync";
});

} // namespace
} // namespace distill::checkpoint
