#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/report/log_scan.h"

namespace distill::report {

// An event in a run, for the time axis and the table.
struct RunEvent {
  int64_t step = 0;
  std::string kind; // as in events.jsonl, or empty_step, resumption, warning, error, end
  std::string text;
  std::string time = {}; // empty: unknown
};

// The starts and ends of a run, from sessions.jsonl.
struct Sessions {
  bool found = false;
  nlohmann::ordered_json starts =
      nlohmann::ordered_json::array(); // for the page: members that it does not know are left out
  std::vector<RunEvent> events; // resumptions and ends
  std::string first_time, end_time; // end_time: empty while the last start has not ended
  std::string outcome; // of the last end
  std::string state; // finished, stopped, failed; empty: the last start has not ended
  int64_t total_steps = 0; // 0: unknown
};
absl::StatusOr<Sessions> read_sessions(const std::string& path);

// events.jsonl. nullopt: there is none.
absl::StatusOr<std::optional<std::vector<RunEvent>>> read_step_events(const std::string& path);

// Lists all events in the order of their steps. A warning of the log that repeats an event of its step is left out.
std::vector<RunEvent> merged_events(std::vector<RunEvent> of_steps, const Sessions& sessions, const LogScan& log);

// Writes `most` events at the most as JSON for the page, the first and the last ones; long texts are cut.
nlohmann::ordered_json events_json(const std::vector<RunEvent>& events, size_t most);

} // namespace distill::report
