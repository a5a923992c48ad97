#include "trainer/optim/lr_schedule.h"

#include <numbers>

namespace distill::optim {

double learning_rate(const config::SchedulerSection& scheduler, double peak_lr, int64_t step, int64_t total_steps) {
  if (step < scheduler.warmup_steps) {
    return peak_lr * static_cast<double>(step + 1) / static_cast<double>(scheduler.warmup_steps);
  }
  int64_t decay_begin = scheduler.warmup_steps;
  if (scheduler.type == config::LrSchedule::kConstant) {
    return peak_lr;
  }
  if (scheduler.type == config::LrSchedule::kWsd) {
    const int64_t decay = scheduler.decay_steps > 0 ? scheduler.decay_steps : std::max<int64_t>(1, total_steps / 10);
    decay_begin = std::max(decay_begin, total_steps - decay);
    if (step < decay_begin) {
      return peak_lr;
    }
  }
  // Progress is 0 at the first decaying step and 1 after the last step of the run, so that no step has a rate of 0.
  const double span = static_cast<double>(std::max<int64_t>(1, total_steps - decay_begin));
  const double progress = std::clamp(static_cast<double>(step - decay_begin) / span, 0.0, 1.0);
  const double shape = scheduler.type == config::LrSchedule::kCosine
      ? 0.5 * (1.0 + std::cos(std::numbers::pi * progress))
      : 1.0 - progress;
  return peak_lr * (scheduler.min_lr_ratio + (1.0 - scheduler.min_lr_ratio) * shape);
}

} // namespace distill::optim
