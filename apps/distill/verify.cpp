#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/verify.h"

namespace distill::cli {

absl::StatusOr<int> run_verify(const VerifyCommand& command) {
  RETURN_IF_ERROR(trainer::verify(command.path, [](const std::string& line) { std::puts(line.c_str()); }));
  return launch::kSuccess;
}

} // namespace distill::cli
