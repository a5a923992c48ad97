#pragma once

#include <absl/status/status.h>

#include <functional>
#include <string>

namespace distill::trainer {

// Compares every checksum of a checkpoint, a model folder that distill has written, a teacher's cache, or a run folder:
// its complete checkpoints, the rounds of an on-policy run, and its trained model. `report` gets a line for each intact
// one. DataLoss names every damaged file. NotFound: the path is none of these, or holds nothing to verify.
absl::Status verify(const std::string& path, const std::function<void(const std::string& line)>& report);

} // namespace distill::trainer
