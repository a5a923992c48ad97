#include "trainer/report/run_data.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>

#include <deque>

#include "data/base/status_macros.h"
#include "trainer/report/line_reader.h"
#include "trainer/report/log_scan.h"
#include "trainer/report/run_events.h"
#include "trainer/report/step_series.h"
#include "trainer/run_folder/folder_lock.h"

namespace distill::report {
namespace {

namespace fs = std::filesystem;

bool has_file(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::Status check_run_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(
        folder.string(), ": expected a run folder (run.dir of a run), found ",
        has_file(folder) ? "a file" : "nothing"));
  }
  if (!has_file(folder / "metrics.jsonl") && !has_file(folder / "config.yaml")) {
    return absl::NotFoundError(absl::StrCat(
        folder.string(), ": expected a run folder, found a folder with neither config.yaml nor metrics.jsonl"));
  }
  return absl::OkStatus();
}

struct Metrics {
  bool found = false;
  StepSeries steps;
  std::vector<Json> evaluations;
  std::vector<RecordedRound> rounds; // of an on-policy run
  std::vector<RunEvent> empty_steps; // the first ones
  // The quality of the means by these names, if some line lists them as not exact.
  Json inexact_steps = Json::object(), inexact_evaluations = Json::object();
};

void add_inexact(const Json& values, Json& inexact) {
  for (const auto& [key, text] : {std::pair("lower_bounds", "lower bound"), std::pair("estimates", "estimate")}) {
    const auto names = values.find(key);
    for (const Json& name : names != values.end() && names->is_array() ? *names : Json::array()) {
      if (name.is_string()) {
        inexact[name.get<std::string>()] = text;
      }
    }
  }
}

Json known_numbers(const Json& values) {
  Json known = Json::object();
  for (const auto& [name, value] : values.items()) {
    if (value.is_number() || value.is_null()) {
      known[name] = value;
    }
  }
  return known;
}

absl::StatusOr<Metrics> read_metrics(const std::string& path, const DataLimits& limits) {
  Metrics metrics{false, StepSeries(limits.points)};
  const auto visit = [&](int64_t number, Json& line) -> absl::Status {
    ASSIGN_OR_RETURN(const int64_t step, step_of(line, path, number));
    const auto eval = line.find("eval");
    if (eval != line.end()) {
      if (!eval->is_object()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", number, ": expected an object as \"eval\", found ", eval->type_name()));
      }
      metrics.evaluations.push_back(
          {{"step", step},
           {"tokens", metrics.steps.last_tokens()},
           {"seconds", metrics.steps.seconds()},
           {"values", known_numbers(*eval)}});
      add_inexact(*eval, metrics.inexact_evaluations);
      return absl::OkStatus();
    }
    if (const auto round = line.find("round"); round != line.end()) {
      if (!round->is_object()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", number, ": expected an object as \"round\", found ", round->type_name()));
      }
      metrics.rounds.push_back({step, metrics.steps.seconds(), std::move(*round)});
      return absl::OkStatus();
    }
    if (metrics.steps.steps() > 0 && step <= metrics.steps.last_step()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ":", number, ": expected a step after ", metrics.steps.last_step(), ", found step ", step));
    }
    metrics.steps.add(step, line);
    add_inexact(line, metrics.inexact_steps);
    if (line.contains("valid_tokens") && line["valid_tokens"] == 0 && metrics.empty_steps.size() < limits.events) {
      metrics.empty_steps.push_back({step, "empty_step", "no token of its samples had a target: nothing was learned"});
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(metrics.found, for_each_object(path, visit));
  return metrics;
}

// The first, the last, and as many between them as there is room for.
Json thinned(std::vector<Json> all, size_t most) {
  Json kept = Json::array();
  const size_t every = (all.size() + most - 1) / std::max<size_t>(1, most);
  for (size_t i = 0; i < all.size(); ++i) {
    if (every <= 1 || i % every == 0 || i + 1 == all.size()) {
      kept.push_back(std::move(all[i]));
    }
  }
  return kept;
}

// The newest samples, with their texts.
absl::Status add_samples(const std::string& path, const DataLimits& limits, Json& run) {
  std::deque<std::pair<size_t, Json>> kept;
  size_t bytes = 0;
  int64_t left_out = 0;
  const auto visit = [&](int64_t number, Json& line) -> absl::Status {
    Json sample;
    ASSIGN_OR_RETURN(sample["step"], step_of(line, path, number));
    sample["index"] = line.contains("index") && line["index"].is_number() ? line["index"] : Json(nullptr);
    for (const char* key : {"prompt", "target", "student", "teacher"}) {
      sample[key] = line.contains(key) && line[key].is_string() ? line[key] : Json(nullptr);
    }
    const size_t size = sample.dump(-1, ' ', false, Json::error_handler_t::replace).size();
    kept.emplace_back(size, std::move(sample));
    bytes += size;
    while (bytes > limits.sample_bytes && kept.size() > 1) {
      bytes -= kept.front().first;
      kept.pop_front();
      ++left_out;
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(for_each_object(path, visit).status());
  run["samples"] = Json::array();
  for (auto& [size, sample] : kept) {
    run["samples"].push_back(std::move(sample));
  }
  run["samples_left_out"] = left_out;
  return absl::OkStatus();
}

// The keys and values of config.yaml as they stand there. It is written by config::dump, of this version or of another
// one: a section, and below it one line for each key.
absl::StatusOr<bool> add_config(const std::string& path, Json& run) {
  Json& all = run["config"] = Json::array();
  std::string section;
  return for_each_line(path, [&](int64_t, const std::string& line) {
    const size_t colon = line.find(':');
    if (line.empty() || absl::StrContains(line.substr(0, line.find_first_not_of(' ') + 1), '#') ||
        colon == std::string::npos) {
      return absl::OkStatus();
    }
    const std::string value(absl::StripAsciiWhitespace(line.substr(colon + 1)));
    const std::string key(absl::StripAsciiWhitespace(line.substr(0, colon)));
    if (line[0] != ' ') {
      section = key;
    }
    if (line[0] == ' ' || !value.empty()) {
      all.push_back({line[0] == ' ' ? section + "." + key : key, value});
    }
    return absl::OkStatus();
  });
}

Json checkpoint_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  // step-9 before step-10.
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::make_pair(a.size(), a) < std::make_pair(b.size(), b);
  });
  return names;
}

// Returns train.steps of the configuration; 0 if another key decides the run's length.
int64_t configured_steps(const Json& config) {
  for (const Json& pair : config) {
    int64_t steps = 0;
    if (pair[0] == "train.steps" && absl::SimpleAtoi(pair[1].get_ref<const std::string&>(), &steps)) {
      return steps;
    }
  }
  return 0;
}

void add_state(const fs::path& folder, const Sessions& sessions, const LogScan& log, Json& run) {
  const auto holder = trainer::FolderLock::holder(folder.string());
  const bool has_model = has_file(folder / "model" / "config.json");
  // The job that has the folder may be one that only reads it, such as a replay.
  const bool live = holder && sessions.state.empty();
  const char* by_files = sessions.found                        ? "unknown" // killed
      : absl::StartsWith(log.last_line, "stopped by a signal") ? "stopped"
      : has_model                                              ? "finished"
                                                               : "unknown";
  run["state"] = live ? "live" : sessions.state.empty() ? by_files : sessions.state;
  run["holder"] = live ? Json(*holder) : Json(nullptr);
  run["start"] = sessions.found ? sessions.first_time : log.first_time;
  run["end"] = sessions.end_time.empty() ? log.last_time : sessions.end_time;
  run["outcome"] = sessions.outcome.empty() ? Json(nullptr) : Json(sessions.outcome);
  run["model"] = has_model ? Json((folder / "model").string()) : Json(nullptr);
  const int64_t steps = sessions.total_steps > 0 ? sessions.total_steps : configured_steps(run["config"]);
  run["total_steps"] = steps > 0 ? Json(steps) : Json(nullptr);
  run["last_line"] = log.last_line;
  run["device"] = log.device;
}

} // namespace

absl::StatusOr<Json> run_data(const std::string& name, const DataLimits& limits) {
  RETURN_IF_ERROR(check_run_folder(name));
  std::error_code error;
  const fs::path folder(name), absolute = fs::weakly_canonical(folder, error);
  const auto path = [&](const char* file) { return (folder / file).string(); };
  Json run;
  run["name"] = (error ? folder : absolute).filename().string();
  run["path"] = name;
  ASSIGN_OR_RETURN(Metrics metrics, read_metrics(path("metrics.jsonl"), limits));
  ASSIGN_OR_RETURN(auto step_events, read_step_events(path("events.jsonl")));
  ASSIGN_OR_RETURN(const Sessions sessions, read_sessions(path("sessions.jsonl")));
  ASSIGN_OR_RETURN(const LogScan log, scan_log(path("log.txt")));
  ASSIGN_OR_RETURN(const bool has_config, add_config(path("config.yaml"), run));
  RETURN_IF_ERROR(add_samples(path("samples.jsonl"), limits, run));
  RETURN_IF_ERROR(add_rounds(name, metrics.rounds, metrics.steps.seconds(), limits.rounds, run));
  add_state(folder, sessions, log, run);
  run["checkpoints"] = checkpoint_names(folder / "checkpoints");
  run["last_step"] = metrics.steps.last_step();
  run.update(metrics.steps.json());
  run["inexact"] = {{"steps", metrics.inexact_steps}, {"evals", metrics.inexact_evaluations}};
  run["evals_recorded"] = metrics.evaluations.size();
  run["evals"] = thinned(std::move(metrics.evaluations), limits.evaluations);
  run["sessions"] = sessions.starts;
  const bool has_events = step_events.has_value();
  std::vector<RunEvent> events = std::move(metrics.empty_steps);
  if (has_events) {
    events.insert(events.end(), step_events->begin(), step_events->end());
  }
  events = merged_events(std::move(events), sessions, log);
  run["events"] = events_json(events, limits.events);
  run["events_left_out"] = static_cast<int64_t>(events.size() - run["events"].size()) + log.left_out;
  run["missing"] = Json::array();
  const std::pair<const char*, bool> files[] = {
      {"metrics.jsonl is missing: there are no curves.", metrics.found},
      {"events.jsonl is missing: spikes and skipped steps are not shown.", has_events},
      {"sessions.jsonl is missing (the run was made by a version that did not write it): the prediction of memory and "
       "time, and the version, are not known.",
       sessions.found},
      {"log.txt is missing: warnings are not shown.", log.found},
      {"config.yaml is missing.", has_config}};
  for (const auto& [text, found] : files) {
    if (!found) {
      run["missing"].push_back(text);
    }
  }
  return run;
}

} // namespace distill::report
