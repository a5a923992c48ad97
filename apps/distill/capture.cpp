#include "trainer/tools/write_cache.h"

#include "apps/distill/commands.h"
#include "apps/distill/ranked_run.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/log.h"

namespace distill::cli {

absl::StatusOr<int> run_capture(const CaptureCommand& command) {
  ASSIGN_OR_RETURN(
      const RankedRun run,
      load_ranked_run(command.config, command.overrides, config::Purpose::kCapture, command.teacher));
  RETURN_IF_ERROR(base::check_output_folder("teacher.cache", run.config.teacher.cache));
  if (command.dry_run) {
    RETURN_IF_ERROR(trainer::write_cache_dry_run(run.config, run.ranks));
    return launch::kSuccess;
  }
  ASSIGN_OR_RETURN(const std::optional<int> code, start_ranks(run));
  if (code) {
    return *code;
  }
  // Lives until the process ends, as that of a training run.
  static const auto* stop = new launch::StopSignal(
      run.ranks.tells_the_user() ? "what is complete stays, exit code 3; the same command goes on" : "");
  const absl::StatusOr<trainer::CaptureResult> result = trainer::write_cache(run.config, run.ranks, *stop);
  if (!result.ok()) { // into the log, which names the rank
    metrics::log_error(std::string(result.status().message()));
    return launch::exit_code(result.status());
  }
  return result->stopped_by_signal ? launch::kStoppedBySignal : launch::kSuccess;
}

} // namespace distill::cli
