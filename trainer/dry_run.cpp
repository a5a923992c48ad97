#include <cstdio>

#include "trainer/components.h"
#include "trainer/config/rules.h"
#include "trainer/metrics/device.h"
#include "trainer/start_report.h"
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
  std::puts("dry run: everything checks out; nothing was written");
  return absl::OkStatus();
}

} // namespace distill::trainer
