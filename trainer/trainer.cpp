#include "trainer/trainer.h"

#include "data/base/status_macros.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/training_run.h"

namespace distill::trainer {

absl::StatusOr<RunResult> train(
    const config::Config& config, const launch::RankInfo& ranks, const StartOptions& start,
    const launch::StopSignal& stop) {
  try {
    ASSIGN_OR_RETURN(std::unique_ptr<RunContext> context, RunContext::join(config, ranks, stop));
    ASSIGN_OR_RETURN(OpenedRun opened, open_run(std::move(context), start, stop));
    return TrainingRun(std::move(opened), stop).run();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(out_of_memory_report(config, ranks, error.what_without_backtrace()));
  }
}

} // namespace distill::trainer
