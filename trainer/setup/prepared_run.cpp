#include "trainer/setup/prepared_run.h"

#include "data/base/status_macros.h"
#include "trainer/config/run_length.h"
#include "trainer/setup/disk_space.h"
#include "trainer/setup/input_warnings.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/start_report.h"

namespace distill::trainer {
namespace {

// Less than this is what idle processes and the driver itself take; the log has it without a warning.
constexpr int64_t kWorthAWarning = int64_t{256} << 20;

} // namespace

absl::StatusOr<PreparedRun> prepare_run(const RunContext& context) {
  const config::Config& config = context.config();
  PreparedRun prepared;
  ASSIGN_OR_RETURN(prepared.inputs, open_inputs(config, context.environment(), config::Purpose::kTrain));
  RETURN_IF_ERROR(context.mesh().is_main() ? check_cache_head(config) : absl::OkStatus());
  ASSIGN_OR_RETURN(
      prepared.plan, plan_memory(config, context.environment(), prepared.inputs, context.ranks(), context.mesh()));
  prepared.report = start_report(config, context.environment(), prepared.inputs);
  const int64_t steps = config::total_steps(config, prepared.inputs.train_data->num_samples());
  const DiskNeed need = disk_need(config, prepared.inputs.student.config, steps);
  const DiskSpace space = disk_space(config.run.dir);
  prepared.report.push_back(disk_line(need, space));
  if (std::string warning = disk_warning(need, space); !warning.empty()) {
    prepared.warnings.push_back(std::move(warning));
  }
  if (prepared.inputs.samples && !prepared.inputs.samples->warning.empty()) {
    prepared.warnings.push_back(prepared.inputs.samples->warning);
  }
  for (std::string& warning : input_warnings(config, prepared.inputs)) {
    prepared.warnings.push_back(std::move(warning));
  }
  return prepared;
}

absl::Status settle_plan(
    const config::Config& config, const Environment& environment, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh, PreparedRun& prepared) {
  RETURN_IF_ERROR(agree_on_gathers(config, environment, prepared.inputs, ranks, mesh, prepared.plan));
  limit_memory(config, environment, prepared.plan.memory, prepared.plan.overflows);
  const std::vector<std::string> lines = prepared.plan.lines();
  prepared.report.insert(prepared.report.end(), lines.begin(), lines.end());
  for (std::string& warning : prepared.plan.warnings()) {
    prepared.warnings.push_back(std::move(warning));
  }
  if (const int64_t others = prepared.plan.memory.outside.others; others >= kWorthAWarning) {
    prepared.warnings.push_back(
        absl::StrFormat("other processes use %s of the device's memory", device::bytes_text(others)));
  }
  return absl::OkStatus();
}

} // namespace distill::trainer
