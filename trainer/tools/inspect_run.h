#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::trainer {

// Describes a run folder for people: what was trained from which data, how many steps are done, the last metrics, the
// checkpoints. InvalidArgument: its config.yaml has problems.
absl::StatusOr<std::string> inspect_run(const std::string& folder);

} // namespace distill::trainer
