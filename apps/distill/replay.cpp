#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/config/load.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/spawn.h"
#include "trainer/ranks.h"
#include "trainer/replay.h"

namespace distill::cli {

int run_replay(const ReplayCommand& command) {
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return fail(ranks.status());
  }
  const int64_t launched = ranks->launcher == "single process" ? 0 : ranks->world_size;
  const config::LoadResult loaded = config::load(command.config, command.overrides, config::Purpose::kTrain, launched);
  if (!loaded.problems.empty()) {
    return fail(absl::InvalidArgumentError(config::report(loaded.problems)));
  }
  const auto replay = trainer::plan_replay(loaded.config, command.step);
  if (!replay.ok()) {
    return fail(replay.status());
  }
  if (const int64_t count = trainer::ranks_to_start(loaded.config, *ranks); count > 1) {
    const absl::StatusOr<int> code = launch::spawn_ranks({.processes = count});
    return code.ok() ? *code : fail(code.status());
  }
  const auto result = trainer::train(replay->config, replay->start);
  if (!result.ok()) {
    return fail(result.status());
  }
  if (result->stopped_by_signal) {
    return kStoppedBySignal;
  }
  if (ranks->rank > 0) {
    return kSuccess;
  }
  const auto comparison = trainer::compare_replay(loaded.config.run.dir, replay->config.run.dir, command.step);
  if (!comparison.ok()) {
    return fail(comparison.status());
  }
  std::fputs(comparison->c_str(), stdout);
  return kSuccess;
}

} // namespace distill::cli
