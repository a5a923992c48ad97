#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/prefetch.h"
#include "trainer/checkpoint/resume.h"
#include "trainer/checkpointer.h"
#include "trainer/float8_gate/gate.h"
#include "trainer/loader/batch_loader.h"
#include "trainer/metrics/throughput.h"
#include "trainer/run_folder/journal.h"
#include "trainer/sample_generator.h"
#include "trainer/setup/prepared_run.h"
#include "trainer/step/train_step.h"
#include "trainer/trainer.h"

namespace distill::trainer {

// A run from its first step to its last, on one rank. Steps are queued on the device; their results are read, and their
// lines written, when further ones have been queued.
class TrainingRun {
 public:
  // Claims the run folder and prepares everything; nothing in the folder changes before all that can be refused has
  // been checked.
  static absl::StatusOr<std::unique_ptr<TrainingRun>> build(
      std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop);
  absl::StatusOr<RunResult> run();

 private:
  TrainingRun(std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop)
      : context_(std::move(context)),
        config_(context_->config()),
        mesh_(context_->mesh()),
        start_(start),
        stop_(stop) {}
  absl::Status claim_folder();
  absl::Status load(PreparedRun prepared);
  absl::Status open();
  std::string gathers_line() const; // how units are gathered, and why
  absl::Status open_journal(const std::optional<checkpoint::Resumed>& resumed);
  void open_data();

  absl::Status run_steps();
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
    return every > 0 && state_.step % every == 0;
  }

  std::shared_ptr<RunFolder> folder_; // before all that writes to it; null on ranks other than 0
  std::unique_ptr<RunContext> context_;
  const config::Config& config_;
  const sharding::Mesh& mesh_;
  const StartOptions start_;
  const launch::StopSignal& stop_;
  std::shared_ptr<const plan::Plan> plan_;
  std::vector<std::string> report_, warnings_; // what the run is about to do
  std::shared_ptr<data::Dataset> train_data_, eval_data_;
  std::optional<float8_gate::TeacherError> float8_error_; // of the teacher, before the run
  LoadedModels models_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<SampleGenerator> samples_; // null: the run has no eval.samples
  std::unique_ptr<metrics::Throughput> throughput_;
  std::optional<RunJournal> journal_;
  std::unique_ptr<Checkpointer> checkpointer_; // after all that it saves and tells
  std::unique_ptr<data::Prefetcher> prefetcher_;
  std::unique_ptr<BatchLoader> loader_;
  absl::Status journal_status_; // the first failure to write a step's line
  checkpoint::TrainState state_;
  int64_t total_steps_ = 0;
  int64_t first_step_ = 0; // of this process
  int64_t last_step_ = 0; // after which this process ends the run; total_steps_ but for a replay
  bool stopped_ = false;
  std::chrono::steady_clock::time_point started_;
};

} // namespace distill::trainer
