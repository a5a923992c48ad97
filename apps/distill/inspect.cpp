#include <unistd.h>

#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/metrics/terminal.h"
#include "trainer/tools/inspect.h"

namespace distill::cli {

absl::StatusOr<int> run_inspect(const InspectCommand& command) {
  trainer::InspectRequest request = command.request;
  request.colour = metrics::shows_colour(STDOUT_FILENO);
  ASSIGN_OR_RETURN(const std::string text, trainer::inspect(request));
  std::fputs(text.c_str(), stdout);
  return launch::kSuccess;
}

} // namespace distill::cli
