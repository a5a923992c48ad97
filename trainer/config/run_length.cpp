#include "trainer/config/run_length.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>

namespace distill::config {

namespace {

constexpr double kMostTokens = 1e18;
constexpr double kRounding = 1e-12; // 0.1 epochs of 30 sequences are 3 sequences, not 4

int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

} // namespace

int64_t token_budget(const Config& config, int64_t epoch_samples) {
  if (config.train.epochs == 0) {
    return config.train.tokens;
  }
  const double samples = std::ceil(config.train.epochs * static_cast<double>(epoch_samples) * (1 - kRounding));
  const double tokens = std::max(samples, 1.0) * static_cast<double>(config.data.seq_len);
  return static_cast<int64_t>(std::min(tokens, kMostTokens));
}

int64_t total_steps(const Config& config, int64_t epoch_samples, const Progress& done) {
  const int64_t budget = token_budget(config, epoch_samples);
  if (budget == 0) {
    return config.train.steps;
  }
  const int64_t tokens_per_step = config.train.global_batch_size * config.data.seq_len;
  return done.steps + ceil_div(std::max<int64_t>(0, budget - done.tokens), tokens_per_step);
}

std::optional<int64_t> known_steps(const Config& config) {
  if (config.train.epochs > 0 || (config.train.steps == 0 && config.train.tokens == 0)) {
    return std::nullopt;
  }
  return total_steps(config, /*epoch_samples=*/0);
}

std::optional<ScheduleFault> schedule_fault(const SchedulerSection& scheduler, int64_t steps) {
  if (scheduler.warmup_steps >= steps) {
    return ScheduleFault{
        "scheduler.warmup_steps", absl::StrCat("fewer than the run's ", steps, " steps"),
        absl::StrCat(scheduler.warmup_steps)};
  }
  if (scheduler.type == LrSchedule::kWsd && scheduler.warmup_steps + scheduler.decay_steps > steps) {
    return ScheduleFault{
        "scheduler.decay_steps",
        absl::StrCat(
            "at most ", steps - scheduler.warmup_steps, ", the run's ", steps, " steps without the ",
            scheduler.warmup_steps, " of warm-up"),
        absl::StrCat(scheduler.decay_steps)};
  }
  return std::nullopt;
}

} // namespace distill::config
