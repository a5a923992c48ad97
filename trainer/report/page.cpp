#include "trainer/report/page.h"

#include <absl/strings/str_replace.h>
#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <nlohmann/json.hpp>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/report/assets.h"
#include "trainer/report/run_data.h"

namespace distill::report {
namespace {

using Json = nlohmann::ordered_json;

// JSON that may stand in a script element: nothing in it can end the element or begin a comment. These characters occur
// in JSON within texts alone. What is not UTF-8 is replaced.
std::string embedded(const Json& json) {
  return absl::StrReplaceAll(
      json.dump(-1, ' ', false, Json::error_handler_t::replace),
      {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}});
}

// Several runs share the room of one page.
DataLimits limits_for(size_t runs) {
  DataLimits limits;
  limits.points = std::max<size_t>(150, 2 * limits.points / (runs + 1));
  limits.evaluations = std::max<size_t>(50, limits.evaluations / runs);
  limits.events = std::max<size_t>(100, limits.events / runs);
  limits.sample_bytes /= runs;
  limits.rounds.sample_bytes /= runs;
  return limits;
}

// Folders of the same name are told apart by their paths.
void make_names_unique(Json& runs) {
  std::map<std::string, int> count;
  for (const Json& run : runs) {
    count[run["name"].get<std::string>()] += 1;
  }
  for (Json& run : runs) {
    if (count[run["name"].get<std::string>()] > 1) {
      run["name"] = run["path"];
    }
  }
}

} // namespace

absl::StatusOr<std::string> report_page(const std::vector<std::string>& run_folders) {
  Json data;
  data["program"] = "distill " DISTILL_VERSION;
  data["made"] = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  Json& runs = data["runs"] = Json::array();
  for (const std::string& folder : run_folders) {
    ASSIGN_OR_RETURN(Json run, run_data(folder, limits_for(run_folders.size())));
    runs.push_back(std::move(run));
  }
  make_names_unique(runs);
  return absl::StrReplaceAll(kPageTemplate, {{"@CSS@", kPageStyle}, {"@DATA@", embedded(data)}, {"@JS@", kPageScript}});
}

absl::Status write_report(const std::vector<std::string>& run_folders, const std::string& path) {
  ASSIGN_OR_RETURN(const std::string page, report_page(run_folders));
  return base::replace_file(path, page);
}

} // namespace distill::report
