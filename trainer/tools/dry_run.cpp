#include "trainer/tools/dry_run.h"

#include <cstdio>

#include "data/base/status_macros.h"
#include "trainer/config/run_length.h"
#include "trainer/metrics/log.h"
#include "trainer/setup/disk_space.h"
#include "trainer/setup/input_warnings.h"
#include "trainer/setup/inputs.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/setup/start_report.h"

namespace distill::trainer {

absl::Status dry_run(config::Config config, const launch::RankInfo& ranks) {
  const int64_t started = ranks_to_start(config, ranks);
  RETURN_IF_ERROR(
      settle_teacher_sequences(config.train.micro_batch_size * std::max(started, ranks.world_size), config));
  ASSIGN_OR_RETURN(const Environment environment, resolve_environment(config));
  ASSIGN_OR_RETURN(const Inputs inputs, open_inputs(config, environment, config::Purpose::kTrain));
  RETURN_IF_ERROR(check_cache_head(config));
  for (const std::string& line : start_report(config, environment, inputs)) {
    std::puts(line.c_str());
  }
  const int64_t steps = config::total_steps(config, inputs.train_data->num_samples());
  const DiskNeed need = disk_need(config, inputs.student.config, steps);
  const DiskSpace space = disk_space(config.run.dir);
  std::puts(disk_line(need, space).c_str());
  if (const std::string warning = disk_warning(need, space); !warning.empty()) {
    metrics::log_warning(warning);
  }
  for (const std::string& warning : input_warnings(config, inputs)) {
    metrics::log_warning(warning);
  }
  ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan_run(
          config, environment, inputs.student.config, inputs.teachers, std::max(started, ranks.world_size),
          std::max(started, ranks.local_world_size)));
  std::fputs(plan.text().c_str(), stdout);
  RETURN_IF_ERROR(check_fits(config, plan));
  std::puts("dry run: everything checks out; nothing was written");
  return absl::OkStatus();
}

} // namespace distill::trainer
