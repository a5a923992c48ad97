#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/verify.h"

namespace distill::cli {

absl::StatusOr<int> run_verify(const VerifyCommand& command) {
  const auto report = [](const std::string& line) { std::puts(line.c_str()); };
  RETURN_IF_ERROR(
      command.path.empty() ? trainer::check_cache(command.cache, report) : trainer::verify(command.path, report));
  return launch::kSuccess;
}

} // namespace distill::cli
