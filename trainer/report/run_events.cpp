#include "trainer/report/run_events.h"

#include <absl/strings/match.h>

#include <set>

#include "data/base/status_macros.h"
#include "trainer/report/line_reader.h"

namespace distill::report {
namespace {

constexpr size_t kLongestText = 400;

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string number_text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? absl::StrFormat("%.4g", found->get<double>()) : "not finite";
}

int64_t integer(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// Writes a line of events.jsonl in words.
std::string event_text(const std::string& kind, const Json& line) {
  const bool evaluated = line.contains("eval") && line["eval"].is_object();
  if (evaluated || line.contains("teacher_ce")) {
    const Json& values = evaluated ? line["eval"] : line;
    return absl::StrCat(
        "cross-entropy on the labels of ", evaluated ? "data.eval" : "data.train", ": teacher ",
        number_text(values, "teacher_ce"), ", student ", number_text(values, "hard"));
  }
  if (line.contains("float8_error")) {
    return absl::StrCat(
        "KL of the student to the float8 teacher ", number_text(line, "forward_kl"), " nats (mean of ",
        integer(line, "steps"), " steps), error of the float8 teacher itself ", number_text(line, "float8_error"));
  }
  std::string text =
      absl::StrCat("loss ", number_text(line, "loss"), ", norm of the gradient ", number_text(line, "grad_norm"));
  if (line.contains("median_before")) {
    absl::StrAppend(
        &text, "; the steps before had a loss of ", number_text(line, "median_before"), " +- ",
        number_text(line, "deviation_before"));
  }
  if (kind == "non_finite_step") {
    text = "the gradients were not finite, and no weight was changed; " + text;
  }
  if (line.contains("samples") && line["samples"].is_array() && line["samples"].size() == 2) {
    absl::StrAppend(&text, "; samples from ", line["samples"][0].dump(), " to before ", line["samples"][1].dump());
  }
  return text;
}

// The plan of a start if it has what the page shows; null otherwise.
Json shown_plan(const Json& start) {
  const auto plan = start.find("plan");
  if (plan == start.end() || !plan->is_object()) {
    return nullptr;
  }
  const std::string phase = text_of(*plan, "peak_phase");
  const Json::json_pointer peak("/phases/" + (absl::StrContains(phase, '/') ? "" : phase));
  for (const char* part : {"bytes", "head", "seconds"}) {
    if (!plan->contains(part) || !(*plan)[part].is_object()) {
      return nullptr;
    }
  }
  if (phase.empty() || !plan->contains(peak) || !(*plan)[peak].is_object() || !(*plan)[peak].contains("at_peak") ||
      !(*plan)[peak]["at_peak"].is_object()) {
    return nullptr;
  }
  Json shown;
  for (const char* key : {"bytes", "head", "seconds", "peak_phase", "activation", "tokens_per_second", "machine"}) {
    shown[key] = plan->contains(key) ? (*plan)[key] : Json(nullptr);
  }
  shown["phases"][phase] = (*plan)[peak];
  return shown;
}

void add_start(const Json& line, Sessions& sessions) {
  Json start;
  for (const char* key : {"start", "program", "device", "host", "ranks", "resumed_from"}) {
    start[key] = line.contains(key) && (line[key].is_string() || line[key].is_number()) ? line[key] : Json(nullptr);
  }
  start["first_step"] = integer(line, "first_step");
  if (Json plan = shown_plan(line); !plan.is_null()) {
    start["plan"] = std::move(plan);
  }
  const std::string time = text_of(line, "start");
  sessions.first_time = sessions.first_time.empty() ? time : sessions.first_time;
  sessions.total_steps = integer(line, "total_steps");
  sessions.end_time = sessions.outcome = sessions.state = "";
  if (const std::string from = text_of(line, "resumed_from"); !from.empty()) {
    const int64_t step = integer(line, "first_step");
    sessions.events.push_back({step, "resumption", absl::StrFormat("resumed after step %d from %s", step, from), time});
  }
  sessions.starts.push_back(std::move(start));
}

} // namespace

absl::StatusOr<Sessions> read_sessions(const std::string& path) {
  Sessions sessions;
  const auto visit = [&](int64_t, Json& line) -> absl::Status {
    if (line.contains("start")) {
      add_start(line, sessions);
    } else if (line.contains("end")) {
      sessions.end_time = text_of(line, "end");
      sessions.state = text_of(line, "state");
      sessions.outcome = text_of(line, "outcome");
      sessions.events.push_back({integer(line, "step"), "end", sessions.outcome, sessions.end_time});
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(sessions.found, for_each_object(path, visit));
  return sessions;
}

absl::StatusOr<std::optional<std::vector<RunEvent>>> read_step_events(const std::string& path) {
  std::vector<RunEvent> events;
  const auto visit = [&](int64_t number, Json& line) -> absl::Status {
    RunEvent event;
    ASSIGN_OR_RETURN(event.step, step_of(line, path, number));
    event.kind = text_of(line, "event");
    event.text = event_text(event.kind, line);
    events.push_back(std::move(event));
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(const bool found, for_each_object(path, visit));
  return found ? std::optional(std::move(events)) : std::nullopt;
}

std::vector<RunEvent> merged_events(std::vector<RunEvent> of_steps, const Sessions& sessions, const LogScan& log) {
  std::set<int64_t> known;
  for (const RunEvent& event : of_steps) {
    known.insert(event.step);
  }
  std::vector<RunEvent> all = std::move(of_steps);
  all.insert(all.end(), sessions.events.begin(), sessions.events.end());
  for (const LogScan::Message& message : log.messages) {
    const bool of_event = known.contains(message.step) &&
        (absl::StartsWith(message.text, absl::StrCat("step ", message.step, ":")) ||
         absl::StartsWith(message.text, absl::StrCat("evaluation after step ", message.step, ":")));
    if (message.level == 'I' ? !sessions.found : !of_event) {
      const char* kind = message.level == 'I' ? "resumption" : message.level == 'E' ? "error" : "warning";
      all.push_back({message.step, kind, message.text, message.time});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const RunEvent& a, const RunEvent& b) { return a.step < b.step; });
  return all;
}

Json events_json(const std::vector<RunEvent>& events, size_t most) {
  Json json = Json::array();
  for (size_t i = 0; i < events.size(); ++i) {
    const size_t first = events.size() > most ? most / 2 : events.size();
    if (i >= first && events.size() - i > most - first) {
      continue;
    }
    const RunEvent& event = events[i];
    std::string text = event.text.size() > kLongestText ? event.text.substr(0, kLongestText) + "..." : event.text;
    json.push_back({{"step", event.step}, {"kind", event.kind}, {"time", event.time}, {"text", std::move(text)}});
  }
  return json;
}

} // namespace distill::report
