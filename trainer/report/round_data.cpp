#include "trainer/report/round_data.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

#include "data/base/status_macros.h"
#include "trainer/onpolicy/round_folder.h"

namespace distill::report {
namespace {

constexpr const char* kTokenNumbers[] = {"loss", "logprob", "forward_kl", "reverse_kl", "entropy", "agrees"};

// The places of at most `most` of `count` things: the first, the last, and those between them at equal distances.
std::vector<size_t> spread(size_t count, size_t most) {
  std::vector<size_t> places;
  const size_t chosen = std::min(count, most);
  places.reserve(chosen);
  for (size_t i = 0; i < chosen; ++i) {
    places.push_back(chosen > 1 ? i * (count - 1) / (chosen - 1) : count - 1);
  }
  return places;
}

// Numbers and objects of numbers; the file is not trusted.
Json numbers_of(const Json& values, int depth) {
  Json known = Json::object();
  for (const auto& [name, value] : values.items()) {
    if (value.is_number() || value.is_null()) {
      known[name] = value;
    } else if (value.is_object() && depth > 0) {
      known[name] = numbers_of(value, depth - 1);
    }
  }
  return known;
}

// Three digits behind the point are enough for a colour and a box.
Json brief_numbers(const Json& list) {
  Json brief = Json::array();
  for (const Json& value : list) {
    brief.push_back(value.is_number() ? Json(std::round(value.get<double>() * 1e3) / 1e3) : Json(nullptr));
  }
  return brief;
}

Json brief_completion(const Json& completion) {
  Json brief;
  for (const char* key : {"document", "prompt_tokens", "completion_tokens", "prompt", "ids", "texts"}) {
    brief[key] = completion.value(key, Json());
  }
  for (const char* key : kTokenNumbers) {
    brief[key] = brief_numbers(completion.value(key, Json::array()));
  }
  return brief;
}

} // namespace

absl::Status add_rounds(
    const std::string& run_dir, const std::vector<RecordedRound>& recorded, double seconds, const RoundLimits& limits,
    Json& run) {
  Json& rounds = run["rounds"] = Json::array();
  run["rounds_recorded"] = recorded.size();
  run["round_samples"] = Json::array();
  for (const size_t i : spread(recorded.size(), limits.rounds)) {
    Json round = numbers_of(recorded[i].values, 1);
    round["step"] = recorded[i].step;
    const double end = i + 1 < recorded.size() ? recorded[i + 1].seconds : seconds;
    round["seconds"]["train"] = end - recorded[i].seconds;
    rounds.push_back(std::move(round));
  }
  std::vector<std::pair<size_t, int64_t>> judged; // places in `rounds`, and their numbers
  for (size_t i = 0; i < rounds.size(); ++i) {
    const Json& value = rounds[i]["number"];
    const int64_t number = value.is_number_unsigned() ? value.get<int64_t>() : -1;
    if (number >= 0 && onpolicy::RoundFolder(run_dir, number).read_complete().ok()) {
      judged.emplace_back(i, number);
    }
  }
  size_t bytes = 0;
  std::vector<size_t> places = spread(judged.size(), limits.judged);
  std::reverse(places.begin(), places.end()); // the newest samples come first
  for (const size_t place : places) {
    const auto& [i, number] = judged[place];
    const auto content = onpolicy::RoundFolder(run_dir, number).read_judged();
    if (absl::IsNotFound(content.status())) {
      continue;
    }
    RETURN_IF_ERROR(content.status());
    if (!content->is_object()) {
      return absl::DataLossError(
          absl::StrCat(onpolicy::RoundFolder(run_dir, number).file(onpolicy::kJudgedFile), ": expected an object"));
    }
    Json& positions = rounds[i]["positions"] = Json::array();
    for (const Json& one : content->value("positions", Json::array())) {
      positions.push_back(one.is_object() ? numbers_of(one, 0) : Json::object());
    }
    Json samples = Json::array();
    for (const Json& completion : content->value("completions", Json::array())) {
      Json brief = completion.is_object() ? brief_completion(completion) : Json();
      bytes += brief.dump(-1, ' ', false, Json::error_handler_t::replace).size();
      if (bytes <= limits.sample_bytes && brief.is_object()) {
        samples.push_back(std::move(brief));
      }
    }
    if (!samples.empty()) {
      run["round_samples"].push_back({{"number", number}, {"completions", std::move(samples)}});
    }
  }
  return absl::OkStatus();
}

} // namespace distill::report
