#include "trainer/setup/prepared_run.h"

#include "data/base/status_macros.h"
#include "trainer/config/run_length.h"
#include "trainer/setup/disk_space.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/start_report.h"

namespace distill::trainer {

absl::StatusOr<PreparedRun> prepare_run(const RunContext& context) {
  const config::Config& config = context.config();
  PreparedRun prepared;
  ASSIGN_OR_RETURN(prepared.inputs, open_inputs(config, context.environment(), config::Purpose::kTrain));
  ASSIGN_OR_RETURN(prepared.plan, plan_memory(config, context.environment(), prepared.inputs, context.ranks()));
  prepared.report = start_report(config, context.environment(), prepared.inputs);
  const DiskNeed need = disk_need(
      config, prepared.inputs.student.config, config::total_steps(config, prepared.inputs.train_data->num_samples()));
  const DiskSpace space = disk_space(config.run.dir);
  prepared.report.push_back(disk_line(need, space));
  if (std::string warning = disk_warning(need, space); !warning.empty()) {
    prepared.warnings.push_back(std::move(warning));
  }
  const std::vector<std::string> lines = prepared.plan.lines();
  prepared.report.insert(prepared.report.end(), lines.begin(), lines.end());
  return prepared;
}

} // namespace distill::trainer
