#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/evaluate_model.h"
#include "trainer/tools/evaluation_config.h"

namespace distill::cli {

absl::StatusOr<int> run_eval(const EvalCommand& command) {
  ASSIGN_OR_RETURN(const config::Config config, trainer::evaluation_config(command.request));
  ASSIGN_OR_RETURN(const trainer::EvalReport report, trainer::evaluate_model(config));
  if (command.json) {
    std::puts(report.json().c_str());
  } else {
    std::fputs(report.text().c_str(), stdout);
  }
  return launch::kSuccess;
}

} // namespace distill::cli
