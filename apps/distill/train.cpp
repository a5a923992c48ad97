#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/config/load.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/spawn.h"
#include "trainer/metrics/log.h"
#include "trainer/ranks.h"
#include "trainer/run_folder.h"
#include "trainer/trainer.h"

namespace distill::cli {

int run_train(const TrainCommand& command) {
  const config::LoadResult loaded = config::load(command.config, command.overrides, config::Purpose::kTrain);
  if (!loaded.problems.empty()) {
    return fail(absl::InvalidArgumentError(config::report(loaded.problems)));
  }
  const auto mode = command.resume ? trainer::StartMode::kResume
      : command.overwrite          ? trainer::StartMode::kOverwrite
                                   : trainer::StartMode::kFresh;
  if (absl::Status status = trainer::check_run_folder(loaded.config.run.dir, mode); !status.ok()) {
    return fail(status);
  }
  if (command.dry_run) {
    const absl::Status status = trainer::dry_run(loaded.config);
    return status.ok() ? kSuccess : fail(status);
  }
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return fail(ranks.status());
  }
  if (const int64_t count = trainer::ranks_to_start(loaded.config, *ranks); count > 1) {
    const absl::StatusOr<int> code = launch::spawn_ranks({.processes = count});
    return code.ok() ? *code : fail(code.status());
  }
  const absl::StatusOr<trainer::RunResult> result = trainer::train(loaded.config, mode);
  if (!result.ok()) {
    metrics::log_error(std::string(result.status().message()));
    return exit_code(result.status());
  }
  return result->stopped_by_signal ? kStoppedBySignal : kSuccess;
}

} // namespace distill::cli
