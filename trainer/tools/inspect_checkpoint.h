#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::trainer {

// Describes one checkpoint for people, an incomplete one too: the state of the run, the run it belongs to, its files
// and units. DataLoss: its index is damaged.
absl::StatusOr<std::string> inspect_checkpoint(const std::string& folder);

} // namespace distill::trainer
