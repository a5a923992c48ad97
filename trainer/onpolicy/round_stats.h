#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trainer/onpolicy/exchange.h"

namespace distill::onpolicy {

// What the completions of a round look like. Shares are 0 to 1.
struct RoundStats {
  int64_t completions = 0; // at least one
  int64_t tokens = 0;
  double truncated = 0; // share of the completions
  int64_t shortest = 0, median = 0, p90 = 0, longest = 0; // lengths, tokens
  // Share of the 4-grams, within their completion, that it has had before: a student that repeats itself.
  double repeated = 0;
  // Different ones among all 1-grams and 4-grams of the round: a student that always says the same has few.
  double distinct_1 = 0, distinct_4 = 0;
  // Mean of -log q of the sampled tokens, nats: an estimate of the entropy of the student's words at temperature 1.
  // NaN: the engine gives no log-probabilities.
  double entropy = 0;
};

RoundStats round_stats(const std::map<int64_t, Completion>& completions);

// For round.json; null where a number is not known.
nlohmann::ordered_json stats_json(const RoundStats& stats);

// One line for the log.
std::string stats_line(const RoundStats& stats);

// A line for each number that means trouble, with its probable cause.
std::vector<std::string> stats_warnings(const RoundStats& stats);

} // namespace distill::onpolicy
