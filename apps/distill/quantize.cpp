#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/quantize.h"

namespace distill::cli {

absl::StatusOr<int> run_quantize(const QuantizeCommand& command) {
  ASSIGN_OR_RETURN(const trainer::QuantizeReport report, trainer::quantize_teacher(command.request));
  if (command.json) {
    std::puts(report.json().c_str());
  } else {
    std::fputs(report.text().c_str(), stdout);
  }
  return report.search.found ? launch::kSuccess : launch::kRuntimeFailure;
}

} // namespace distill::cli
