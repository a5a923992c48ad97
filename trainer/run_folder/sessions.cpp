#include "trainer/run_folder/sessions.h"

#include <absl/time/clock.h>
#include <absl/time/time.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "trainer/metrics/json_lines.h"

namespace distill::trainer {
namespace {

using Json = nlohmann::ordered_json;

std::string now() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
}

// All earlier lines are kept, except for a torn one.
absl::Status append(const std::string& run_dir, const Json& line) {
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  ASSIGN_OR_RETURN(auto file, metrics::JsonLines::open(run_dir + "/sessions.jsonl", {kAll, kAll}));
  RETURN_IF_ERROR(file.append(line.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return file.sync();
}

const char* state_name(SessionState state) {
  constexpr const char* kNames[] = {"finished", "stopped", "failed"};
  return kNames[static_cast<size_t>(state)];
}

} // namespace

absl::Status record_session_start(const std::string& run_dir, const SessionStart& start) {
  Json line;
  line["start"] = now();
  line["program"] = start.program;
  line["host"] = start.host;
  line["device"] = start.device;
  line["ranks"] = start.ranks;
  line["first_step"] = start.first_step;
  line["total_steps"] = start.total_steps;
  line["resumed_from"] = start.resumed_from.empty() ? Json(nullptr) : Json(start.resumed_from);
  line["plan"] = Json::parse(start.plan, nullptr, /*allow_exceptions=*/false);
  if (line["plan"].is_discarded()) {
    line["plan"] = nullptr;
  }
  return append(run_dir, line);
}

absl::Status record_session_end(
    const std::string& run_dir, int64_t step, SessionState state, const std::string& outcome) {
  Json line;
  line["end"] = now();
  line["step"] = step;
  line["state"] = state_name(state);
  line["outcome"] = outcome;
  return append(run_dir, line);
}

} // namespace distill::trainer
