#pragma once

#include <absl/status/status.h>

#include <string>

// The run folder: config.yaml (resolved), log.txt, metrics.jsonl, checkpoints/, model/.
namespace distill::trainer {

enum class StartMode {
  kFresh, // the run folder must not exist, or be empty
  kResume, // continues the run folder
  kOverwrite, // removes the files of an earlier run from the run folder
};

// Checks whether a run may start in `run_dir` in this mode; changes nothing. Errors: a new run in a folder that is not
// empty; a resumption without a folder; overwriting a folder with files that no run writes.
absl::Status check_run_folder(const std::string& run_dir, StartMode mode);

// Creates the folder. With kOverwrite, removes the files of an earlier run from it, and no others.
absl::Status open_run_folder(const std::string& run_dir, StartMode mode);

} // namespace distill::trainer
