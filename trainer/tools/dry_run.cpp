#include <cstdio>

#include "trainer/config/rules.h"
#include "trainer/launch/ranks.h"
#include "trainer/setup/inputs.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/start_report.h"
#include "trainer/trainer.h"

namespace distill::trainer {

absl::Status dry_run(const config::Config& config) {
  const auto environment = resolve_environment(config);
  if (!environment.ok()) {
    return environment.status();
  }
  const auto inputs = open_inputs(config, *environment, config::Purpose::kTrain);
  if (!inputs.ok()) {
    return inputs.status();
  }
  for (const std::string& line : start_report(config, *environment, *inputs)) {
    std::puts(line.c_str());
  }
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return ranks.status();
  }
  const int64_t started = ranks_to_start(config, *ranks);
  const auto plan = plan_run(
      config, *environment, inputs->student.config, inputs->teacher ? &inputs->teacher->config : nullptr,
      std::max(started, ranks->world_size), std::max(started, ranks->local_world_size));
  if (!plan.ok()) {
    return plan.status();
  }
  std::fputs(plan->text().c_str(), stdout);
  if (absl::Status status = check_fits(config, *plan); !status.ok()) {
    return status;
  }
  std::puts("dry run: everything checks out; nothing was written");
  return absl::OkStatus();
}

} // namespace distill::trainer
