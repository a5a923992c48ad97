#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_writer.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/config/config.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/run_folder/journal.h"
#include "trainer/training_data.h"

namespace distill::trainer {

// Log lines about where a resumed run goes on, and about keys that have changed since the checkpoint was made.
std::vector<std::string> describe_resumption(const checkpoint::Resumed& resumed, const config::Config& config);

// The log line of a resumed run that has done `step` steps already, and thereby all of them.
std::string describe_no_step_left(int64_t step, int64_t total_steps);

// The checkpoints of a run: from which one it goes on, when one is written, what a failure to write means, and the
// lines about it in the log. All ranks call these functions together.
class RunCheckpoints {
 public:
  // `model_files`: of RunInfo. What is given by reference outlives this.
  RunCheckpoints(
      const config::Config& config, checkpoint::RunIdentity identity, std::map<std::string, std::string> model_files,
      TrainingData& data, sharding::ModelShards& student, optim::AdamW& optimizer, const sharding::Mesh& mesh);

  // Continues from the folder, or where it is empty from the newest complete checkpoint of the run folder, and takes
  // the training data to where the run stands. Changes no file, but sets checkpoints aside: those that turn out to be
  // damaged, and those beyond the one that is resumed, before a line about their steps is dropped from metrics.jsonl.
  // FailedPrecondition: the checkpoint belongs to another run, or, unless `other_data_allowed` of its state, was made
  // with other data.
  absl::StatusOr<checkpoint::Resumed> resume(
      const std::string& folder, const std::function<bool(const checkpoint::TrainState&)>& other_data_allowed);

  // Call before the first save. With checkpoint.async, takes the host memory for the copies; if there is not enough,
  // logs that, and training waits for each checkpoint.
  void open(RunJournal& journal, int64_t processes_on_host);

  // At checkpoint.every: begins to save. Waits for a save that is still being written, and logs for how long.
  absl::Status save_periodic(const checkpoint::TrainState& state);
  // At the end or on a signal: returns once the checkpoint of this state is complete, or the error that prevents it.
  absl::Status save_final(const checkpoint::TrainState& state);
  // Waits for what is being written.
  absl::Status finish();

  // Once for each step: how the checkpoint that is being written stands on this rank, and what follows from the sums
  // over all ranks.
  sharding::WritingRanks own_writing() {
    return writer_ ? writer_->own_writing() : sharding::WritingRanks{};
  }
  absl::Status advance(const sharding::WritingRanks& ranks);
  // Before the optimizer changes the state.
  void before_update() {
    if (writer_) {
      writer_->before_update();
    }
  }

 private:
  absl::Status begin(checkpoint::TrainState state);
  at::Tensor copy_memory(int64_t processes_on_host) const;
  void show_waiting(int64_t bytes, int64_t total);
  absl::Status report(const absl::StatusOr<checkpoint::Saved>& saved, bool tolerated);

  const config::Config& config_;
  TrainingData& data_;
  checkpoint::RunInfo info_;
  sharding::ModelShards& student_;
  optim::AdamW& optimizer_;
  const sharding::Mesh& mesh_;
  RunJournal* journal_ = nullptr;
  std::optional<metrics::TaskProgress> waiting_; // for the writing of a checkpoint
  std::unique_ptr<checkpoint::CheckpointWriter> writer_;
  int64_t saved_step_ = -1; // a complete checkpoint of this step exists
};

} // namespace distill::trainer
