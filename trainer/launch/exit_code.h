#pragma once

#include <absl/status/status.h>

namespace distill::launch {

// What a distill process returns. `distill --help` lists the codes.
enum ExitCode : int {
  kSuccess = 0,
  kRuntimeFailure = 1,
  kBadInput = 2, // the command line, the configuration, or a file that they name; nothing was started
  kStoppedBySignal = 3, // the state was saved
  kDoesNotFit = 4, // the memory plan is larger than the memory; nothing was started
};

// kDoesNotFit for OutOfRange, which memory plans alone have (trainer/setup/memory_setup.h), kBadInput for statuses
// about the request or about files, kRuntimeFailure for all other errors.
ExitCode exit_code(const absl::Status& status);

} // namespace distill::launch
