#pragma once

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/trainer/checkpoint/tiny_run.h"
#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/resume.h"

namespace distill::checkpoint {

namespace fs = std::filesystem;

// `async`: whether checkpoints are written on a thread.
class CheckpointTest : public testing::TestWithParam<bool> {
 protected:
  std::string dir_ = testing::TempDir() + "checkpoint_test";
  RunInfo info_{{"a model", "an optimizer", "a tokenizer"}, "run: {dir: x}\n", "distill test", "/student"};
  TrainState state_{
      .step = 7,
      .samples = 56,
      .tokens = 5600,
      .skipped_total = 2,
      .skipped_in_row = 1,
      .evaluated_step = 5,
      .data_stages = {{0, 0, 100, data::PackingMode::kPack, 0, {"a data set"}}}};
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
    CheckpointWriter writer(
        {.run_dir = dir_, .keep = keep, .copy_memory = copy_memory(run, GetParam())}, info_, run.model, run.optimizer,
        mesh_);
    if (absl::Status status = writer.begin(state_); !status.ok()) {
      return status;
    }
    return *writer.finish();
  }
  std::string save(TrainedModel& run, int64_t step, int64_t keep = 2) {
    const auto saved = try_save(run, step, keep);
    EXPECT_TRUE(saved.ok()) << saved.status();
    return saved.ok() ? saved->folder : "";
  }
  ResumingRun same_run() const {
    return {info_.identity, [](const DataStage&) { return DataIdentity{"a data set"}; }};
  }
  absl::StatusOr<Resumed> load(const std::string& folder, TrainedModel& run) {
    return resume_from(folder, same_run(), run.model, run.optimizer, mesh_);
  }
  absl::StatusOr<Resumed> load_newest(TrainedModel& run) {
    return resume_newest(dir_, same_run(), run.model, run.optimizer, mesh_);
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

} // namespace distill::checkpoint
