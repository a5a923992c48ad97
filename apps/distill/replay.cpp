#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/ranked_run.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/run_folder/recorded_metrics.h"
#include "trainer/tools/replay.h"

namespace distill::cli {

absl::StatusOr<int> run_replay(const ReplayCommand& command) {
  ASSIGN_OR_RETURN(const RankedRun run, load_ranked_run(command.config, command.overrides, config::Purpose::kTrain));
  ASSIGN_OR_RETURN(const trainer::Replay replay, trainer::plan_replay(run.config, command.step));
  if (starts_ranks(run)) { // else this process is a rank, and rank 0 claims the folder
    RETURN_IF_ERROR(trainer::RunFolder::check(replay.config.run.dir, replay.start.mode, replay.start.parent_run));
  }
  ASSIGN_OR_RETURN(const std::optional<int> code, start_ranks(run));
  if (code) {
    return *code;
  }
  const launch::StopSignal stop(run.ranks.tells_the_user() ? launch::kRunStops : "");
  ASSIGN_OR_RETURN(const trainer::RunResult result, trainer::train(replay.config, run.ranks, replay.start, stop));
  if (result.stopped_by_signal) {
    return launch::kStoppedBySignal;
  }
  if (run.ranks.rank == 0) {
    ASSIGN_OR_RETURN(
        const std::string comparison,
        trainer::compare_recorded_steps(run.config.run.dir, replay.config.run.dir, command.step));
    std::fputs(comparison.c_str(), stdout);
  }
  return launch::kSuccess;
}

} // namespace distill::cli
