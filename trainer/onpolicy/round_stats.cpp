#include "trainer/onpolicy/round_stats.h"

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace distill::onpolicy {
namespace {

constexpr size_t kGram = 4;
// Beyond these a warning says what may be wrong.
constexpr double kMostTruncated = 0.5;
constexpr double kMostRepeated = 0.3;
constexpr double kLeastDistinct = 0.2;
constexpr double kLeastEntropy = 0.05; // nats

using Gram = std::array<uint32_t, kGram>;

double share(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

nlohmann::ordered_json known(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

} // namespace

RoundStats round_stats(const std::map<int64_t, Completion>& completions) {
  RoundStats stats;
  stats.completions = static_cast<int64_t>(completions.size());
  std::vector<int64_t> lengths;
  absl::flat_hash_set<uint32_t> ids;
  absl::flat_hash_set<Gram> grams;
  int64_t truncated = 0, repeated = 0, all_grams = 0;
  double logprobs = 0;
  for (const auto& [id, completion] : completions) {
    const std::vector<uint32_t>& own = completion.ids;
    lengths.push_back(static_cast<int64_t>(own.size()));
    stats.tokens += lengths.back();
    truncated += completion.truncated ? 1 : 0;
    ids.insert(own.begin(), own.end());
    absl::flat_hash_set<Gram> before;
    for (size_t i = 0; i + kGram <= own.size(); ++i) {
      Gram gram;
      std::copy_n(own.begin() + static_cast<std::ptrdiff_t>(i), kGram, gram.begin());
      grams.insert(gram);
      repeated += before.insert(gram).second ? 0 : 1;
      ++all_grams;
    }
    for (const double logprob : completion.logprobs) {
      logprobs += logprob;
    }
    logprobs = completion.logprobs.empty() ? NAN : logprobs;
  }
  std::sort(lengths.begin(), lengths.end());
  const auto quantile = [&](double q) {
    return lengths[static_cast<size_t>(q * static_cast<double>(lengths.size() - 1))];
  };
  stats.shortest = lengths.front();
  stats.median = quantile(0.5);
  stats.p90 = quantile(0.9);
  stats.longest = lengths.back();
  stats.truncated = share(truncated, stats.completions);
  stats.repeated = share(repeated, all_grams);
  stats.distinct_1 = share(static_cast<int64_t>(ids.size()), stats.tokens);
  stats.distinct_4 = all_grams > 0 ? share(static_cast<int64_t>(grams.size()), all_grams) : 1;
  stats.entropy = -logprobs / static_cast<double>(stats.tokens);
  return stats;
}

nlohmann::ordered_json stats_json(const RoundStats& stats) {
  return {
      {"completions", stats.completions},
      {"completion_tokens", stats.tokens},
      {"truncated", stats.truncated},
      {"lengths", {{"min", stats.shortest}, {"median", stats.median}, {"p90", stats.p90}, {"max", stats.longest}}},
      {"repeated_4grams", stats.repeated},
      {"distinct_1grams", stats.distinct_1},
      {"distinct_4grams", stats.distinct_4},
      {"entropy", known(stats.entropy)}};
}

std::string stats_line(const RoundStats& stats) {
  std::string line = absl::StrFormat(
      "%d completions of %d tokens (%d to %d, median %d), %.1f%% truncated, %.1f%% of 4-grams repeated",
      stats.completions, stats.tokens, stats.shortest, stats.longest, stats.median, 100 * stats.truncated,
      100 * stats.repeated);
  if (std::isfinite(stats.entropy)) {
    line += absl::StrFormat(", entropy %.3f nats", stats.entropy);
  }
  return line;
}

std::vector<std::string> stats_warnings(const RoundStats& stats) {
  std::vector<std::string> warnings;
  if (stats.truncated > kMostTruncated) {
    warnings.push_back(absl::StrFormat(
        "%.0f%% of the completions are truncated: onpolicy.max_new_tokens is short for these prompts, or the student no "
        "longer ends its texts",
        100 * stats.truncated));
  }
  if (stats.repeated > kMostRepeated) {
    warnings.push_back(absl::StrFormat(
        "%.0f%% of the 4-grams of a completion are repetitions: the student repeats itself, as it does after too large a "
        "learning rate, or with a low onpolicy.temperature",
        100 * stats.repeated));
  }
  if (stats.distinct_4 < kLeastDistinct) {
    warnings.push_back(absl::StrFormat(
        "only %.0f%% of the round's 4-grams are different: the student says the same to every prompt, or the prompts are "
        "alike",
        100 * stats.distinct_4));
  }
  if (stats.entropy < kLeastEntropy) {
    warnings.push_back(absl::StrFormat(
        "the entropy of the student's words is %.3f nats: it is almost certain of each of them, and further rounds bring "
        "little that is new",
        stats.entropy));
  }
  return warnings;
}

} // namespace distill::onpolicy
