#include "apps/distill/ranked_run.h"

#include "trainer/config/load.h"

namespace distill::cli {

absl::StatusOr<RankedRun> load_ranked_run(const std::string& config, const std::vector<std::string>& overrides) {
  auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return ranks.status();
  }
  config::LoadResult loaded = config::load(config, overrides, config::Purpose::kTrain, ranks->launched());
  if (!loaded.problems.empty()) {
    return absl::InvalidArgumentError(config::report(loaded.problems));
  }
  return RankedRun{*std::move(ranks), std::move(loaded.config)};
}

} // namespace distill::cli
