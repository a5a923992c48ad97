#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/config/load.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/evaluate_model.h"

namespace distill::cli {

absl::StatusOr<int> run_eval(const EvalCommand& command) {
  ASSIGN_OR_RETURN(
      const config::Config config, config::load(command.config, command.overrides, config::Purpose::kEvaluate));
  ASSIGN_OR_RETURN(const trainer::EvalReport report, trainer::evaluate_model(config));
  if (command.json) {
    std::puts(report.json().c_str());
  } else {
    std::fputs(report.text().c_str(), stdout);
  }
  return launch::kSuccess;
}

} // namespace distill::cli
