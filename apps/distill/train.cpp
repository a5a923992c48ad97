#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "apps/distill/ranked_run.h"
#include "trainer/launch/spawn.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/log.h"
#include "trainer/run_folder/run_folder.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/tools/dry_run.h"
#include "trainer/trainer.h"

namespace distill::cli {

namespace {

namespace fs = std::filesystem;

absl::StatusOr<trainer::StartOptions> start_options(const TrainCommand& command, const std::string& run_dir) {
  trainer::StartOptions start;
  start.mode = command.resume ? trainer::StartMode::kResume
      : command.overwrite     ? trainer::StartMode::kOverwrite
                              : trainer::StartMode::kFresh;
  if (command.resume_from.empty()) {
    return start;
  }
  std::error_code error;
  fs::path from = fs::weakly_canonical(command.resume_from, error);
  if (error || !fs::is_directory(from, error)) {
    return absl::NotFoundError(
        absl::StrCat("--resume-from: expected a checkpoint's folder, found none at ", command.resume_from));
  }
  from = from.has_filename() ? from : from.parent_path();
  start.resume_from = from.string();
  if (from.parent_path() == fs::weakly_canonical(fs::path(run_dir) / "checkpoints", error)) {
    if (command.overwrite) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--resume-from ", command.resume_from,
          " with --overwrite, which would remove that checkpoint; leave "
          "--overwrite out to go on in run.dir, or name another run.dir"));
    }
    start.mode = trainer::StartMode::kResume;
  }
  return start;
}

} // namespace

int run_train(const TrainCommand& command) {
  const auto run = load_ranked_run(command.config, command.overrides);
  if (!run.ok()) {
    return fail(run.status());
  }
  const auto start = start_options(command, run->config.run.dir);
  if (!start.ok()) {
    return fail(start.status());
  }
  if (absl::Status status = trainer::check_run_folder(run->config.run.dir, start->mode); !status.ok()) {
    return fail(status);
  }
  if (command.dry_run) {
    const absl::Status status = trainer::dry_run(run->config, run->ranks);
    return status.ok() ? kSuccess : fail(status);
  }
  if (const int64_t count = trainer::ranks_to_start(run->config, run->ranks); count > 1) {
    const absl::StatusOr<int> code = launch::spawn_ranks({.processes = count});
    return code.ok() ? *code : fail(code.status());
  }
  // Until the process has ended: a signal that comes when all is done does not undo it.
  static const auto* stop = new launch::StopSignal();
  const absl::StatusOr<trainer::RunResult> result = trainer::train(run->config, run->ranks, *start, *stop);
  if (!result.ok()) {
    metrics::log_error(std::string(result.status().message()));
    return exit_code(result.status());
  }
  return result->stopped_by_signal ? kStoppedBySignal : kSuccess;
}

} // namespace distill::cli
