#include "trainer/session.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "trainer/device/device_info.h"
#include "trainer/report/page.h"
#include "trainer/setup/join_ranks.h"

namespace distill::trainer {

absl::Status begin_session(const RunContext& context, SessionStart progress) {
  const at::Device device = context.environment().device;
  progress.program = "distill " DISTILL_VERSION;
  progress.host = host_name();
  progress.device = absl::StrFormat("%s (%s)", device.str(), device::device_info(device).name);
  progress.ranks = context.mesh().world_size;
  return record_session_start(context.config().run.dir, progress);
}

void end_session(
    const std::string& run_dir, const absl::Status& status, bool stopped, int64_t step, bool writes_report,
    RunJournal& journal) {
  const SessionState state = !status.ok() ? SessionState::kFailed
      : stopped                           ? SessionState::kStopped
                                          : SessionState::kFinished;
  const std::string outcome = !status.ok()
      ? std::string(status.message())
      : absl::StrFormat("%s after step %d", stopped ? "stopped by a signal" : "finished", step);
  absl::Status written = record_session_end(run_dir, step, state, outcome);
  if (written.ok() && writes_report) {
    written = report::write_report({run_dir}, absl::StrCat(run_dir, "/", report::kReportFile));
  }
  if (!written.ok()) {
    journal.warning("the report of this run was not written: " + std::string(written.message()));
  }
}

} // namespace distill::trainer
