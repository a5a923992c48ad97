#pragma once

#include <cstdint>

#include "trainer/config/config.h"

namespace distill::optim {

// Learning rate of optimizer step `step` (0-based) of `total_steps`: linear warm-up over warmup_steps, where the first
// step already has lr / warmup_steps, then constant, linear or cosine, or WSD (constant, then linear over the last
// decay_steps). A decay reaches min_lr_ratio * lr at step `total_steps`, the one after the last.
double learning_rate(const config::SchedulerSection& scheduler, double peak_lr, int64_t step, int64_t total_steps);

} // namespace distill::optim
