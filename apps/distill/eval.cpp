#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/config/load.h"
#include "trainer/tools/evaluate_model.h"

namespace distill::cli {

int run_eval(const EvalCommand& command) {
  const config::LoadResult loaded = config::load(command.config, command.overrides, config::Purpose::kEvaluate);
  if (!loaded.problems.empty()) {
    return fail(absl::InvalidArgumentError(config::report(loaded.problems)));
  }
  const absl::StatusOr<trainer::EvalReport> report = trainer::evaluate_model(loaded.config);
  if (!report.ok()) {
    return fail(report.status());
  }
  if (command.json) {
    std::puts(report->json().c_str());
  } else {
    std::fputs(report->text().c_str(), stdout);
  }
  return kSuccess;
}

} // namespace distill::cli
