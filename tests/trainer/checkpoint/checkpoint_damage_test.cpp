#include <sys/resource.h>

#include <csignal>

#include "data/base/checksum.h"
#include "tests/trainer/checkpoint/checkpoint_fixture.h"
#include "trainer/hf/safetensors.h"

// Checkpoints that are damaged, cannot be written, or are not what they say.
namespace distill::checkpoint {
namespace {

using testing::HasSubstr;

class CheckpointDamageTest : public CheckpointTest {};

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

TEST_P(CheckpointDamageTest, ADamagedCheckpointIsSetAsideAndTheOneBeforeUsed) {
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

TEST_P(CheckpointDamageTest, WithoutAnyUndamagedCheckpointTheErrorSaysWhatIsWrongWithEach) {
  TrainedModel run(1);
  fs::remove(save(run, 1) + "/rank-00000.safetensors");
  flip(save(run, 2) + "/index.json", 40);
  const auto resumed = load_newest(run);
  EXPECT_EQ(resumed.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(resumed.status().message()),
      testing::AllOf(HasSubstr("step-1/rank-00000.safetensors"), HasSubstr("step-2/index.json")));
}

TEST_P(CheckpointDamageTest, AFailingWriteIsReportedAndKeepsWhatIsThere) {
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

TEST_P(CheckpointDamageTest, AVanishedFolderIsAnErrorThatNamesIt) {
  TrainedModel run(1);
  save(run, 1);
  fs::remove_all(dir_);
  const auto gone = try_save(run, 2);
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr(dir_));
  EXPECT_FALSE(fs::exists(dir_));

  fs::create_directories(dir_);
  state_.step = 3;
  CheckpointWriter writer(
      {.run_dir = dir_, .copy_memory = copy_memory(run, true)}, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(writer.begin(state_).ok());
  while (writer.own_writing().writing > 0) { // the shards are written
  }
  fs::remove_all(fs::path(dir_) / "checkpoints");
  const auto vanished = *writer.finish();
  EXPECT_THAT(std::string(vanished.status().message()), HasSubstr("step-3"));
}

TEST_P(CheckpointDamageTest, AMarkerThatCannotBeWrittenLeavesNothingOnTheDisk) {
  TrainedModel run(1);
  save(run, 1);
  // A folder in the marker's place.
  CheckpointWriterOptions options{.run_dir = dir_, .copy_memory = copy_memory(run, GetParam())};
  options.before_publish = [&] {
    fs::create_directory(partial_folder(dir_, 2) / kMarkerFile);
    return absl::OkStatus();
  };
  state_.step = 2;
  CheckpointWriter writer(options, info_, run.model, run.optimizer, mesh_);
  ASSERT_TRUE(writer.begin(state_).ok());
  const auto saved = *writer.finish();
  EXPECT_THAT(std::string(saved.status().message()), HasSubstr("step-2/COMPLETE: cannot create"));
  EXPECT_EQ(checkpoints(), std::set<std::string>{"step-1"});
}

TEST_P(CheckpointDamageTest, AFlippedVersionIsDamageAndAnotherVersionIsNot) {
  TrainedModel good(1), newer(2), resumed(3);
  save(good, 3);
  const std::string folder = save(newer, 4);
  std::ifstream index(folder + "/index.json");
  const std::string text((std::istreambuf_iterator<char>(index)), std::istreambuf_iterator<char>());
  flip(folder + "/index.json", static_cast<int64_t>(text.find("\"version\": ") + 11)); // 3 -> 2
  auto result = load_newest(resumed).value();
  EXPECT_EQ(result.state.step, 3);

  const std::string other = save(newer, 5);
  std::string changed = text;
  changed.replace(changed.find("\"version\": 3"), 12, "\"version\": 9");
  std::ofstream(other + "/index.json") << changed;
  EXPECT_EQ(load(other, resumed).status().code(), absl::StatusCode::kDataLoss) << "the marker is of this version";
  std::ofstream(other + "/COMPLETE") << "distill-checkpoint 9 in a way of its own\n";
  EXPECT_EQ(load(other, resumed).status().code(), absl::StatusCode::kFailedPrecondition);
}

// Somebody who can write the files can make the checksums fit.
TEST_P(CheckpointDamageTest, AGeneratorsStateThatIsNoneIsAnError) {
  TrainedModel run(1), resumed(2);
  const std::string folder = save(run, 3), path = folder + "/rank-00000.safetensors";
  {
    const auto file = hf::SafetensorsFile::open(path).value();
    const hf::TensorInfo* state = file.find("rng.cpu");
    ASSERT_NE(state, nullptr);
    std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(file.header().data_begin + state->begin);
    stream << std::string(static_cast<size_t>(state->end - state->begin), '\xff');
  }
  auto index = read_index(folder).value();
  std::ifstream stream(path, std::ios::binary);
  const std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  index.files[0].block_sums = {base::checksum(content.data(), content.size())};
  const std::string text = to_json(index);
  std::ofstream(folder + "/index.json") << text;
  std::ofstream(folder + "/COMPLETE") << "distill-checkpoint 3 index.json xxh3 "
                                      << base::checksum_text(base::checksum(text.data(), text.size())) << "\n";
  const auto result = load(folder, resumed);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(result.status().message()),
      testing::AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("rng.cpu"), HasSubstr("not a state of a random")));
}

TEST_P(CheckpointDamageTest, ACheckpointUnderAnothersNameIsNotUsed) {
  TrainedModel good(1), resumed(3);
  const fs::path folder = save(good, 3);
  fs::copy(folder, folder.parent_path() / "step-8", fs::copy_options::recursive);
  fs::copy(folder, folder.parent_path() / "step-0009", fs::copy_options::recursive);
  const auto result = load_newest(resumed).value();
  EXPECT_EQ(result.state.step, 3);
  EXPECT_THAT(result.damaged, HasSubstr("holds the checkpoint of step 3"));
  EXPECT_EQ(checkpoints(), (std::set<std::string>{"step-3", "step-8.damaged", "step-0009"}));
  fs::copy(folder, fs::path(dir_) / "elsewhere", fs::copy_options::recursive);
  EXPECT_TRUE(load(dir_ + "/elsewhere", resumed).ok()) << "a name that says no step says nothing wrong";
}

INSTANTIATE_TEST_SUITE_P(, CheckpointDamageTest, testing::Bool(), [](const auto& param) {
  return param.param ? "Async" : "Sync";
});

} // namespace
} // namespace distill::checkpoint
