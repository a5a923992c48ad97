#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/load.h"
#include "trainer/launch/ranks.h"

namespace distill::cli {

// The processes and the configuration of a command that runs on one or many ranks.
struct RankedRun {
  launch::RankInfo ranks; // read from the launcher's environment, once for the process
  config::Config config; // checked against the number of ranks
};

// `teacher`: as of config::load. InvalidArgument: a launcher's variable is wrong, or one report of all problems of the
// configuration.
absl::StatusOr<RankedRun> load_ranked_run(
    const std::string& config_file, const std::vector<std::string>& overrides, config::Purpose purpose,
    const std::string& teacher = "");

// Tells whether start_ranks() will start the ranks as processes of their own.
bool starts_ranks(const RankedRun& run);

// Starts the ranks where the run has several and no launcher has started them, waits for their end and returns their
// exit code. nullopt: this process is a rank itself.
absl::StatusOr<std::optional<int>> start_ranks(const RankedRun& run);
// Starts `count` ranks in the same way. `log_file`: see launch::SpawnOptions.
absl::StatusOr<std::optional<int>> start_ranks(
    const launch::RankInfo& ranks, int64_t count, const std::string& log_file = "");

} // namespace distill::cli
