#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"

namespace distill::trainer {

// Measures products, attention, device memory, copies to and from the host and, with several ranks, collectives on
// train.device; rank 0 writes them to `file`, for memory.machine. Every rank calls it. Returns a table for people.
absl::StatusOr<std::string> calibrate_machine(
    const config::Config& config, const launch::RankInfo& ranks, const std::string& file);

} // namespace distill::trainer
