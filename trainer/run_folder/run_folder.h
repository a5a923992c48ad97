#pragma once

#include <absl/status/status.h>

#include <string>

// The run folder: config.yaml (resolved), log.txt, metrics.jsonl, checkpoints/, model/.
namespace distill::trainer {

enum class StartMode {
  kFresh, // the run folder must not exist, or be empty
  kResume, // continues the run folder
  kOverwrite, // removes what an earlier run left in the run folder
};

// Whether `mode` may start in `run_dir` as it is; changes nothing. A folder that holds anything is refused unless the
// mode says what becomes of it.
absl::Status check_run_folder(const std::string& run_dir, StartMode mode);

// Makes the folder; with kOverwrite, removes what an earlier run left there, and nothing else.
absl::Status open_run_folder(const std::string& run_dir, StartMode mode);

} // namespace distill::trainer
