#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "apps/distill/ranked_run.h"
#include "trainer/launch/spawn.h"
#include "trainer/run_folder/records.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/tools/replay.h"

namespace distill::cli {

int run_replay(const ReplayCommand& command) {
  const auto run = load_ranked_run(command.config, command.overrides);
  if (!run.ok()) {
    return fail(run.status());
  }
  const auto replay = trainer::plan_replay(run->config, command.step);
  if (!replay.ok()) {
    return fail(replay.status());
  }
  if (const int64_t count = trainer::ranks_to_start(run->config, run->ranks); count > 1) {
    const absl::StatusOr<int> code = launch::spawn_ranks({.processes = count});
    return code.ok() ? *code : fail(code.status());
  }
  const launch::StopSignal stop;
  const auto result = trainer::train(replay->config, run->ranks, replay->start, stop);
  if (!result.ok()) {
    return fail(result.status());
  }
  if (result->stopped_by_signal) {
    return kStoppedBySignal;
  }
  if (run->ranks.rank > 0) {
    return kSuccess;
  }
  const auto comparison = trainer::compare_recorded_steps(run->config.run.dir, replay->config.run.dir, command.step);
  if (!comparison.ok()) {
    return fail(comparison.status());
  }
  std::fputs(comparison->c_str(), stdout);
  return kSuccess;
}

} // namespace distill::cli
