#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>

#include "trainer/metrics/throughput.h"
#include "trainer/onpolicy/rounds.h"
#include "trainer/plan/plan.h"
#include "trainer/run_batches.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_folder/journal.h"
#include "trainer/run_folder/run_folder.h"
#include "trainer/sample_generator.h"
#include "trainer/setup/run_context.h"
#include "trainer/start_options.h"
#include "trainer/step/train_step.h"
#include "trainer/training_data.h"

namespace distill::trainer {

// All that a run has before its first step, on one rank. Later members use earlier ones.
struct OpenedRun {
  StartOptions start;
  std::shared_ptr<RunFolder> folder; // before all that writes to it; null on ranks other than 0
  std::unique_ptr<RunContext> context;
  std::shared_ptr<const plan::Plan> plan;
  std::unique_ptr<TrainingData> data;
  std::shared_ptr<const data::Dataset> eval_data; // null without data.eval
  std::unique_ptr<LoadedModels> models;
  std::unique_ptr<TrainStep> step;
  std::unique_ptr<SampleGenerator> samples; // null: the run has no eval.samples
  std::unique_ptr<metrics::Throughput> throughput;
  std::unique_ptr<RunJournal> journal;
  std::unique_ptr<RunCheckpoints> checkpoints; // after all that it saves and tells
  std::unique_ptr<onpolicy::Rounds> rounds; // null: the run is not on-policy
  std::unique_ptr<RunBatches> batches;
  checkpoint::TrainState state; // where the run stands
  int64_t total_steps = 0;
  int64_t last_step = 0; // after which this process ends the run; total_steps but for a replay
};

// Claims the run folder, makes the plan, loads the models, continues from a checkpoint, opens journal and data. Nothing
// in the folder changes before all that can be refused has been checked. All ranks call it together. `stop` outlives
// the result.
absl::StatusOr<OpenedRun> open_run(
    std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop);

} // namespace distill::trainer
