#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

namespace distill::trainer {

// The line of sessions.jsonl for a start of a run: the program and where it ran, from which step, and the plan.
struct SessionStart {
  std::string program; // with its version
  std::string host;
  std::string device;
  int64_t ranks = 1;
  int64_t first_step = 0; // the number of steps that were done before
  int64_t total_steps = 0;
  std::string resumed_from; // a checkpoint's folder; empty: from the beginning
  std::string plan; // JSON
};

enum class SessionState {
  kFinished,
  kStopped, // by a signal, the state saved
  kFailed
};

// Appends the start's line, with the time. Earlier lines stay, those of steps that a resumption undoes included.
absl::Status record_session_start(const std::string& run_dir, const SessionStart& start);

// Appends the line of the end, after `step` steps, with the outcome in words. A start without this line is running, or
// was killed.
absl::Status record_session_end(
    const std::string& run_dir, int64_t step, SessionState state, const std::string& outcome);

} // namespace distill::trainer
