#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/trainer/checkpoint/tiny_run.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/checkpoint/saver.h"
#include "trainer/models/checksum.h"
#include "trainer/models/safetensors.h"

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

namespace fs = std::filesystem;
using testing::HasSubstr;

// No file of this process grows beyond `bytes`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    former_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &former_);
    const rlimit limit{bytes, former_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &former_);
    std::signal(SIGXFSZ, former_handler_);
  }

 private:
  rlimit former_{};
  void (*former_handler_)(int);
};

// `async`: whether checkpoints are written on a thread.
class CheckpointTest : public testing::TestWithParam<bool> {
 protected:
  std::string dir_ = testing::TempDir() + "checkpoint_test";
  RunInfo info_{
      {"a model", "an optimizer", "a data set", "a tokenizer"},
      "run: {dir: x}\n",
      "distill test",
      "/student"};
  TrainState state_{
      .step = 7,
      .samples = 56,
      .tokens = 5600,
      .skipped_total = 2,
      .skipped_in_row = 1,
      .evaluated_step = 5,
      .data_stages = {{0, 0, 100, "pack"}}};
  sharding::Mesh mesh_;

  void SetUp() override {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  static at::Tensor copy_memory(TrainedModel& run, bool async) {
    return async ? at::empty({state_bytes(state_tensors(run.model, run.optimizer))}, at::kByte) : at::Tensor();
  }
  absl::StatusOr<Saved> try_save(TrainedModel& run, int64_t step, int64_t keep = 2) {
    state_.step = step;
    Saver saver(
        {.run_dir = dir_, .keep = keep, .copy_memory = copy_memory(run, GetParam())}, info_, run.model, run.optimizer,
        mesh_);
    if (absl::Status status = saver.begin(state_); !status.ok()) {
      return status;
    }
    return *saver.finish();
  }
  std::string save(TrainedModel& run, int64_t step, int64_t keep = 2) {
    const auto saved = try_save(run, step, keep);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.ok() ? saved->folder : "";
  }
  IdentityAt identity() const {
    return [own = info_.identity](const DataStage&) { return own; };
  }
  absl::StatusOr<Resumed> load(const std::string& folder, TrainedModel& run) {
    return resume_from(folder, identity(), run.model, run.optimizer, mesh_);
  }
  absl::StatusOr<Resumed> load_newest(TrainedModel& run) {
    return resume_newest(dir_, identity(), run.model, run.optimizer, mesh_);
  }
  std::set<std::string> checkpoints() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(fs::path(dir_) / "checkpoints")) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  static void flip(const std::string& file, int64_t offset) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const int byte = stream.get();
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 1));
  }
};

TEST_P(CheckpointTest, RoundTripIsBitForBit) {
  TrainedModel saved(1), other(2);
  ASSERT_FALSE(saved.same_as(other));
  at::manual_seed(99);
  const std::string folder = save(saved, 7);
  const at::Tensor expected = at::rand({4});
  const auto resumed = load(folder, other);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->state, state_);
  EXPECT_EQ(resumed->info.identity, info_.identity);
  EXPECT_EQ(resumed->info.config, info_.config);
  EXPECT_TRUE(saved.same_as(other));
  EXPECT_TRUE(at::equal(at::rand({4}), expected)) << "the random generator goes on where it was";
}

TEST_P(CheckpointTest, WhatIsSavedIsTheStateAtTheBegin) {
  TrainedModel run(1), as_it_was(1), resumed(3);
  Saver saver({.run_dir = dir_, .copy_memory = copy_memory(run, true)}, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(saver.begin(state_).ok());
  saver.before_update();
  for (int64_t i = 0; i < run.model.num_units(); ++i) {
    run.model.unit(i).master.fill_(0); // the next steps
    run.optimizer.moments(i).exp_avg.fill_(0);
  }
  const auto saved = *saver.finish();
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_TRUE(load(saved->folder, resumed).ok());
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
  state_.data_stages = {{0, 0, 32, "pack"}, {3, 24, 64, "concat"}};
  const std::string folder = save(run, 7);
  const auto at_stage = [&](const DataStage& stage) {
    RunIdentity own = info_.identity;
    own.data = stage.seq_len == 64 && stage.packing == "concat" ? own.data : "data of another stage";
    return own;
  };
  const auto resumed = resume_from(folder, at_stage, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->state.data_stages, state_.data_stages);
}

// It has no stages: the length and packing are those of its configuration.
TEST_P(CheckpointTest, TheFormatBeforeIsReadWithTheStageOfItsConfiguration) {
  TrainedModel run(1);
  info_.config = "data: {seq_len: 48, packing: concat}\na_section_of_old: {}\n";
  const std::string folder = save(run, 7);
  auto index = read_index(folder);
  ASSERT_TRUE(index.ok()) << index.status();
  index->version = kOldestVersion;
  const std::string text = to_json(*index);
  std::ofstream(fs::path(folder) / kIndexFile) << text;
  std::ofstream(fs::path(folder) / kMarkerFile)
      << "distill-checkpoint 2 index.json xxh3 " << models::checksum_text(models::checksum(text.data(), text.size()))
      << "\n";
  const auto resumed = load(folder, run);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->state.data_stages, (std::vector<DataStage>{{0, 0, 48, "concat"}}));
}

TEST_P(CheckpointTest, AnotherRunIsRefusedWithBothValuesOfEverythingThatDiffers) {
  TrainedModel run(1), untouched(1);
  const std::string folder = save(run, 1);
  const RunIdentity own = info_.identity;
  const RunIdentity others[] = {
      {"model B", own.optimizer, own.data, own.tokenizer},
      {own.model, "optimizer B", own.data, own.tokenizer},
      {own.model, own.optimizer, "data B", own.tokenizer},
      {own.model, own.optimizer, own.data, "tokenizer B"}};
  for (const RunIdentity& other : others) {
    const auto resumed = resume_from(
        folder, [&](const DataStage&) { return other; }, run.model, run.optimizer, mesh_);
    EXPECT_EQ(resumed.status().code(), absl::StatusCode::kFailedPrecondition);
    const std::string message(resumed.status().message());
    EXPECT_THAT(message, HasSubstr(" B\n"));
    EXPECT_THAT(message, testing::ContainsRegex("checkpoint: an? (model|optimizer|data set|tokenizer)"));
  }
  EXPECT_TRUE(run.same_as(untouched));
  EXPECT_TRUE(fs::exists(folder)) << "it is not damaged and must stay";
}

TEST_P(CheckpointTest, ADamagedCheckpointIsSetAsideAndTheOneBeforeUsed) {
  const int64_t shard_bytes = [&] {
    TrainedModel run(1);
    return static_cast<int64_t>(fs::file_size(save(run, 1) + "/rank-00000.safetensors"));
  }();
  struct Damage {
    const char* file;
    int64_t offset; // -1: the file is cut by one byte, -2: it is gone
  };
  const Damage damages[] = {
      {"rank-00000.safetensors", 3},
      {"rank-00000.safetensors", 100},
      {"rank-00000.safetensors", shard_bytes - 1},
      {"rank-00000.safetensors", -1},
      {"rank-00000.safetensors", -2},
      {"index.json", 0},
      {"index.json", 200},
      {"index.json", -1},
      {"index.json", -2},
      {"COMPLETE", 30},
      {"COMPLETE", -1}};
  for (const Damage& damage : damages) {
    SetUp();
    TrainedModel good(1), newer(2), resumed(3);
    save(good, 3);
    const std::string damaged = save(newer, 4);
    const std::string file = damaged + "/" + damage.file;
    if (damage.offset == -2) {
      fs::remove(file);
    } else if (damage.offset == -1) {
      fs::resize_file(file, fs::file_size(file) - 1);
    } else {
      flip(file, damage.offset);
    }
    const auto result = load_newest(resumed);
    ASSERT_TRUE(result.ok()) << file << " at " << damage.offset << ": " << result.status();
    EXPECT_EQ(result->state.step, 3) << file << " at " << damage.offset;
    EXPECT_TRUE(resumed.same_as(good));
    EXPECT_THAT(result->damaged, HasSubstr(damage.file));
    EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-3", "step-4.damaged"}));
  }
}

TEST_P(CheckpointTest, WithoutAnyUndamagedCheckpointTheErrorSaysWhatIsWrongWithEach) {
  TrainedModel run(1);
  fs::remove(save(run, 1) + "/rank-00000.safetensors");
  flip(save(run, 2) + "/index.json", 40);
  const auto resumed = load_newest(run);
  EXPECT_EQ(resumed.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(resumed.status().message()),
      testing::AllOf(HasSubstr("step-1/rank-00000.safetensors"), HasSubstr("step-2/index.json")));
}

TEST_P(CheckpointTest, AFailingWriteIsReportedAndKeepsWhatIsThere) {
  TrainedModel run(1), resumed(2);
  save(run, 1);
  for (const rlim_t bytes : {0, 10, 5000}) {
    const FileSizeLimit full(bytes);
    const auto saved = try_save(run, 2);
    EXPECT_EQ(saved.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(
        std::string(saved.status().message()), HasSubstr("rank-00000.safetensors: cannot write: File too large"));
    EXPECT_EQ(checkpoints(), std::set<std::string>{"step-1"});
  }
  save(run, 2); // the next one is fine again
  ASSERT_TRUE(load_newest(resumed).ok());
  EXPECT_TRUE(resumed.same_as(run));
}

TEST_P(CheckpointTest, AVanishedFolderIsAnErrorThatNamesIt) {
  TrainedModel run(1);
  save(run, 1);
  fs::remove_all(dir_);
  const auto gone = try_save(run, 2);
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr(dir_));
  EXPECT_FALSE(fs::exists(dir_));

  fs::create_directories(dir_);
  state_.step = 3;
  Saver saver({.run_dir = dir_, .copy_memory = copy_memory(run, true)}, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(saver.begin(state_).ok());
  while (saver.vote().writing > 0) { // the shards are written
  }
  fs::remove_all(fs::path(dir_) / "checkpoints");
  const auto vanished = *saver.finish();
  EXPECT_THAT(std::string(vanished.status().message()), HasSubstr("step-3"));
}

TEST_P(CheckpointTest, WhatBelongsToTheCheckpointIsSyncedBeforeItCounts) {
  TrainedModel run(1);
  bool complete_before = true;
  SaverOptions options{.run_dir = dir_, .copy_memory = copy_memory(run, GetParam())};
  options.before_publish = [&] {
    complete_before = newest_complete(dir_).has_value();
    return absl::InternalError("metrics.jsonl: cannot sync");
  };
  Saver saver(options, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(saver.begin(state_).ok());
  const auto saved = *saver.finish();
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

TEST_P(CheckpointTest, AMarkerThatCannotBeWrittenLeavesNothingOnTheDisk) {
  TrainedModel run(1);
  save(run, 1);
  // A folder in the marker's place.
  SaverOptions options{.run_dir = dir_, .copy_memory = copy_memory(run, GetParam())};
  options.before_publish = [&] {
    fs::create_directory(partial_folder(dir_, 2) / kMarkerFile);
    return absl::OkStatus();
  };
  state_.step = 2;
  Saver saver(options, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(saver.begin(state_).ok());
  const auto saved = *saver.finish();
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr("step-2/COMPLETE: cannot create"));
  EXPECT_EQ(checkpoints(), std::set<std::string>{"step-1"});
}

TEST_P(CheckpointTest, AFlippedVersionIsDamageAndAnotherVersionIsNot) {
  TrainedModel good(1), newer(2), resumed(3);
  save(good, 3);
  const std::string folder = save(newer, 4);
  std::ifstream index(folder + "/index.json");
  const std::string text((std::istreambuf_iterator<char>(index)), std::istreambuf_iterator<char>());
  flip(folder + "/index.json", static_cast<int64_t>(text.find("\"version\": ") + 11)); // 3 -> 2
  auto result = load_newest(resumed);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->state.step, 3);

  const std::string other = save(newer, 5);
  std::string changed = text;
  changed.replace(changed.find("\"version\": 3"), 12, "\"version\": 9");
  std::ofstream(other + "/index.json") << changed;
  EXPECT_EQ(load(other, resumed).status().code(), absl::StatusCode::kDataLoss) << "the marker is of this version";
  std::ofstream(other + "/COMPLETE") << "distill-checkpoint 9 in a way of its own\n";
  EXPECT_EQ(load(other, resumed).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Somebody who can write the files can make the checksums fit.
TEST_P(CheckpointTest, AGeneratorsStateThatIsNoneIsAnError) {
  TrainedModel run(1), resumed(2);
  const std::string folder = save(run, 3), path = folder + "/rank-00000.safetensors";
  {
    const auto file = models::SafetensorsFile::open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    const models::TensorInfo* state = file->find("rng.cpu");
    ASSERT_NE(state, nullptr);
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(file->header().data_begin + state->begin);
    stream << std::string(static_cast<size_t>(state->end - state->begin), '\xff');
  }
  auto index = read_index(folder);
  ASSERT_TRUE(index.ok()) << index.status();
  std::ifstream stream(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  index->files[0].block_sums = {models::checksum(content.data(), content.size())};
  const std::string text = to_json(*index);
  std::ofstream(folder + "/index.json") << text;
  std::ofstream(folder + "/COMPLETE") << "distill-checkpoint 3 index.json xxh3 "
                                      << models::checksum_text(models::checksum(text.data(), text.size())) << "\n";
  const auto result = load(folder, resumed);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(result.status().message()),
      testing::AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("rng.cpu"), HasSubstr("no state of a random")));
}

TEST_P(CheckpointTest, ACheckpointUnderAnothersNameIsNotUsed) {
  TrainedModel good(1), resumed(3);
  const fs::path folder = save(good, 3);
  fs::copy(folder, folder.parent_path() / "step-8", fs::copy_options::recursive);
  fs::copy(folder, folder.parent_path() / "step-0009", fs::copy_options::recursive);
  const auto result = load_newest(resumed);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->state.step, 3);
  EXPECT_THAT(result->damaged, HasSubstr("holds the checkpoint of step 3"));
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-3", "step-8.damaged", "step-0009"}));
  fs::copy(folder, fs::path(dir_) / "elsewhere", fs::copy_options::recursive);
  EXPECT_TRUE(load(dir_ + "/elsewhere", resumed).ok()) << "a name that says no step says nothing wrong";
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
