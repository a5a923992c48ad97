#pragma once

#include <chrono>
#include <optional>

#include "trainer/device/memory_park.h"
#include "trainer/open_run.h"
#include "trainer/run_result.h"

namespace distill::trainer {

// A run from its first step to its last, on one rank. Steps are queued on the device; their results are read, and their
// lines written, when further ones have been queued.
class TrainingRun {
 public:
  // `stop` outlives this object.
  TrainingRun(OpenedRun opened, const launch::StopSignal& stop);
  TrainingRun(const TrainingRun&) = delete;
  TrainingRun& operator=(const TrainingRun&) = delete;

  absl::StatusOr<RunResult> run();

 private:
  absl::Status run_steps();
  void record_end(const absl::Status& status);
  absl::Status begin_round();
  absl::Status park_state();
  EvaluationHooks evaluation_hooks();
  onpolicy::RoundHooks round_hooks();
  absl::StatusOr<std::optional<onpolicy::Round>> write_round();
  absl::StatusOr<std::optional<GlobalBatch>> next_batch();
  void train_step(const GlobalBatch& batch);
  absl::Status handle_results(bool all);
  absl::Status handle(TrainStep::Results done);
  absl::Status evaluate_and_save();
  absl::Status evaluate();
  absl::Status save_checkpoint(bool periodic);
  absl::Status show_samples();
  absl::Status close();
  absl::Status save_model();
  absl::Status end_complete_run(bool write_model);

  bool due(int64_t every) const {
    return every > 0 && opened_.state.step % every == 0;
  }

  OpenedRun opened_;
  // Parts of it.
  const config::Config& config_;
  const sharding::Mesh& mesh_;
  TrainStep& step_;
  RunJournal& journal_;
  RunCheckpoints& checkpoints_;
  checkpoint::TrainState& state_;

  const launch::StopSignal& stop_;
  const int64_t first_step_; // steps that were done before this process
  absl::Status journal_status_; // the first failure to write a step's line
  bool stopped_ = false;
  std::unique_ptr<device::MemoryPark> park_; // null: the engine of an on-policy run leaves the trainer's state alone
  std::chrono::steady_clock::time_point started_;
};

} // namespace distill::trainer
