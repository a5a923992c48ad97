#include "trainer/report/page.h"

#include <cstdio>
#include <filesystem>

#include "apps/distill/commands.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"

namespace distill::cli {

absl::StatusOr<int> run_report(const ReportCommand& command) {
  const std::filesystem::path folder = command.runs.size() == 1 ? command.runs.front() : "";
  const std::string output = command.output.empty() ? (folder / report::kReportFile).string() : command.output;
  RETURN_IF_ERROR(base::check_output_file("--output", output));
  RETURN_IF_ERROR(report::write_report(command.runs, output));
  std::puts(output.c_str());
  return launch::kSuccess;
}

} // namespace distill::cli
