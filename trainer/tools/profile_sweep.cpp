#include "trainer/tools/profile_sweep.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_split.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/launch/run_self.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kGiB = 1 << 30;

std::string last_line(const std::string& path) {
  std::ifstream in(path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    last = line.empty() ? last : line;
  }
  return last;
}

std::string table_header(const std::string& key) {
  return absl::StrFormat(
      "%-28s %14s %14s %9s %12s %12s %14s %14s\n", key, "predicted GiB", "measured GiB", "error", "head GiB",
      "peak phase", "pred. tok/s", "meas. tok/s");
}

std::string table_row(const std::string& value, const Json& report) {
  const Json& measured = report["measured"];
  return absl::StrFormat(
      "%-28s %14.3f %14.3f %8.2f%% %12.3f %12s %14.0f %14.0f\n", value,
      report["plan"]["bytes"]["peak"].get<double>() / kGiB, measured["peak"].get<double>() / kGiB,
      100 * report["peak_error"].get<double>(), measured["phases"]["head"]["highest"]["head"].get<double>() / kGiB,
      measured["peak_phase"].get<std::string>(), report["plan"]["tokens_per_second"].get<double>(),
      measured["tokens_per_second"].get<double>());
}

} // namespace

absl::StatusOr<SweepReport> profile_sweep(
    const std::string& config_file, const std::vector<std::string>& overrides, const std::string& sweep,
    const ProfileOptions& options) {
  const std::vector<std::string> parts = absl::StrSplit(sweep, absl::MaxSplits('=', 1));
  if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--sweep: expected section.key=VALUE,VALUE,..., found \"", sweep, "\""));
  }
  const std::string& key = parts[0];
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--out: cannot create ", options.folder, ": ", error.message()));
  }
  std::vector<std::string> common{"profile-memory", "--config", config_file, "--steps", absl::StrCat(options.steps)};
  for (const std::string& text : overrides) {
    common.insert(common.end(), {"--set", text});
  }
  std::string table = table_header(key);
  Json reports = Json::object();
  for (const std::string& value : std::vector<std::string>(absl::StrSplit(parts[1], ','))) {
    const std::string folder = absl::StrCat(options.folder, "/", key, "=", value);
    const std::string log = folder + ".log";
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--set", absl::StrCat(key, "=", value), "--out", folder});
    ASSIGN_OR_RETURN(const int code, launch::run_self(arguments, log));
    if (code == launch::kBadInput) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sweep: ", key, "=", value, ": ", last_line(log), " (", log, ")"));
    }
    if (code != launch::kSuccess) {
      absl::StrAppendFormat(&table, "%-28s failed: %s (%s)\n", value, last_line(log), log);
      continue;
    }
    std::ifstream in(folder + "/report.json");
    reports[value] = Json::parse(in);
    table += table_row(value, reports[value]);
  }
  RETURN_IF_ERROR(base::write_file(options.folder + "/sweep.txt", table));
  return SweepReport{table, reports.dump(1) + "\n"};
}

} // namespace distill::trainer
