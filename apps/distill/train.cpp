#include <absl/strings/str_cat.h>

#include <filesystem>

#include "apps/distill/commands.h"
#include "apps/distill/ranked_run.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/log.h"
#include "trainer/report/page.h"
#include "trainer/run_folder/run_folder.h"
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
          " with --overwrite, which would remove that checkpoint; leave --overwrite out to continue in run.dir, or name "
          "another run.dir"));
    }
    start.mode = trainer::StartMode::kResume;
  }
  return start;
}

// Writes the report of a run that failed after `started` without one from rank 0, which was killed, lost another rank,
// or ran out of memory.
void write_missing_report(const fs::path& run_dir, fs::file_time_type started) {
  std::error_code error;
  const fs::file_time_type recorded = fs::last_write_time(run_dir / "metrics.jsonl", error);
  if (error || recorded < started) {
    return; // the failure came before the first step, or the folder is another job's
  }
  const fs::path page = run_dir / report::kReportFile;
  const fs::file_time_type written = fs::last_write_time(page, error);
  if (!error && written >= recorded) {
    return;
  }
  const absl::Status status = report::write_report({run_dir.string()}, page.string());
  if (!status.ok()) {
    metrics::log_warning(absl::StrCat("the report of this run was not written: ", status.message()));
  }
}

} // namespace

absl::StatusOr<int> run_train(const TrainCommand& command) {
  ASSIGN_OR_RETURN(const RankedRun run, load_ranked_run(command.config, command.overrides, config::Purpose::kTrain));
  ASSIGN_OR_RETURN(const trainer::StartOptions start, start_options(command, run.config.run.dir));
  if (command.dry_run || starts_ranks(run)) { // else this process is a rank, and rank 0 claims the folder
    RETURN_IF_ERROR(trainer::RunFolder::check(run.config.run.dir, start.mode));
  }
  if (command.dry_run) {
    RETURN_IF_ERROR(trainer::dry_run(run.config, run.ranks));
    return launch::kSuccess;
  }
  const fs::file_time_type started = fs::file_time_type::clock::now();
  ASSIGN_OR_RETURN(const std::optional<int> code, start_ranks(run));
  if (code) {
    if (*code == launch::kRuntimeFailure) {
      write_missing_report(run.config.run.dir, started);
    }
    return *code;
  }
  // Lives until the process ends: a signal that arrives when everything is saved must not kill the process.
  static const auto* stop = new launch::StopSignal(run.ranks.tells_the_user() ? launch::kRunStops : "");
  const absl::StatusOr<trainer::RunResult> result = trainer::train(run.config, run.ranks, start, *stop);
  if (!result.ok()) { // into the log, which names the rank
    metrics::log_error(std::string(result.status().message()));
    if (run.ranks.rank == 0) {
      write_missing_report(run.config.run.dir, started);
    }
    return launch::exit_code(result.status());
  }
  return result->stopped_by_signal ? launch::kStoppedBySignal : launch::kSuccess;
}

} // namespace distill::cli
