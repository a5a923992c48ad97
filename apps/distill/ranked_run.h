#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"

namespace distill::cli {

// This process's place among the ranks, and a training configuration that was checked against their number.
struct RankedRun {
  launch::RankInfo ranks;
  config::Config config;
};

// Errors: the launcher's variables are off, or every problem of the configuration in one report.
absl::StatusOr<RankedRun> load_ranked_run(const std::string& config, const std::vector<std::string>& overrides);

} // namespace distill::cli
