#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace distill::report {

// Makes one HTML page with the runs of these folders: data, style and scripts are in it, and it loads nothing else. Its
// errors are those of run_data.
absl::StatusOr<std::string> report_page(const std::vector<std::string>& run_folders);

// Writes the page whole or not at all.
absl::Status write_report(const std::vector<std::string>& run_folders, const std::string& path);

// The name of a run's own report in its folder.
inline constexpr const char* kReportFile = "report.html";

} // namespace distill::report
