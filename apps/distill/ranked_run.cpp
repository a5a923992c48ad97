#include "apps/distill/ranked_run.h"

#include <absl/strings/str_cat.h>

#include "data/base/status_macros.h"
#include "trainer/launch/spawn.h"
#include "trainer/setup/join_ranks.h"

namespace distill::cli {

absl::StatusOr<RankedRun> load_ranked_run(
    const std::string& config_file, const std::vector<std::string>& overrides, config::Purpose purpose,
    const std::string& teacher) {
  RankedRun run;
  ASSIGN_OR_RETURN(run.ranks, launch::detect_ranks(launch::process_environ()));
  ASSIGN_OR_RETURN(run.config, config::load(config_file, overrides, purpose, run.ranks.launched(), teacher));
  return run;
}

bool starts_ranks(const RankedRun& run) {
  return run.ranks.launched() == 0 && trainer::ranks_to_start(run.config, run.ranks) > 1;
}

absl::StatusOr<std::optional<int>> start_ranks(const RankedRun& run) {
  return start_ranks(
      run.ranks, trainer::ranks_to_start(run.config, run.ranks), absl::StrCat(run.config.run.dir, "/log.txt"));
}

absl::StatusOr<std::optional<int>> start_ranks(
    const launch::RankInfo& ranks, int64_t count, const std::string& log_file) {
  if (count <= 1 || ranks.launched() > 0) {
    return std::optional<int>();
  }
  ASSIGN_OR_RETURN(const int code, launch::spawn_ranks({.processes = count, .log_file = log_file}));
  return std::optional<int>(code);
}

} // namespace distill::cli
