#pragma once

#include <absl/status/status.h>

namespace distill::cli {

// What the process returns. --help lists them.
enum ExitCode : int {
  kSuccess = 0,
  kRuntimeFailure = 1,
  kBadInput = 2, // command line, configuration, or a file that they name
  kStoppedBySignal = 3, // the state was saved
};

// kBadInput for statuses about what was asked for or about files, kRuntimeFailure for the rest.
ExitCode exit_code(const absl::Status& status);

// Prints "distill: error: MESSAGE" on standard error and returns the status's exit code.
ExitCode fail(const absl::Status& status);

} // namespace distill::cli
