#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/inspect.h"

namespace distill::cli {

absl::StatusOr<int> run_inspect(const InspectCommand& command) {
  ASSIGN_OR_RETURN(const std::string text, trainer::inspect(command.path));
  std::fputs(text.c_str(), stdout);
  return launch::kSuccess;
}

} // namespace distill::cli
