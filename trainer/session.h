#pragma once

#include <absl/status/status.h>

#include <string>

#include "trainer/run_folder/journal.h"
#include "trainer/run_folder/sessions.h"
#include "trainer/setup/run_context.h"

namespace distill::trainer {

// Records that this process has started on a run: where it runs, from which step, what the plan predicts. `progress`:
// first_step, total_steps, resumed_from and plan; the rest is filled in.
absl::Status begin_session(const RunContext& context, SessionStart progress);

// Records how the process ended, after `step` steps, and with `writes_report` writes the run's report. What fails here
// fails no run: it is a warning.
void end_session(
    const std::string& run_dir, const absl::Status& status, bool stopped, int64_t step, bool writes_report,
    RunJournal& journal);

} // namespace distill::trainer
