#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "losses/linear_head.h"
#include "trainer/metrics/phase_timer.h"

namespace distill::metrics {

// Means over the valid tokens of a global batch, or of a whole evaluation, of every row that the head returns.
struct LossMeans {
  std::array<double, losses::kNumRows> rows{};
  int64_t valid_tokens = 0;
  bool has_teacher = false;
};

// Divides sums by the number of valid tokens; all zero where there is none.
LossMeans loss_means(const std::array<double, losses::kNumRows>& sums, int64_t valid_tokens, bool has_teacher);

struct StepRecord {
  int64_t step = 0; // 1-based: steps done
  int64_t total_steps = 0;
  LossMeans means;
  double grad_norm = 0; // before clipping
  bool skipped = false; // gradients were not finite
  int64_t skipped_total = 0;
  double lr = 0;
  int64_t first_sample = 0, num_samples = 0; // that the step was made of
  int64_t tokens = 0; // seen since the start of the run, padding included
  double seconds = 0; // of this step
  PhaseSeconds phases{};
  double tokens_per_second = 0;
  double mfu_causal = 0, mfu_full = 0; // fractions of the device's peak; 0: unknown device
  int64_t peak_memory_bytes = 0; // of tensors; on the CPU of the process
  int64_t peak_reserved_bytes = 0; // by the allocator; 0: CPU
  double eta_seconds = 0;
};

// The one line a step prints.
std::string step_line(const StepRecord& record);
// One line of metrics.jsonl, without the newline.
std::string step_json(const StepRecord& record);

// The means alone, one JSON object.
std::string means_json(const LossMeans& means);

// The same for an evaluation after `step` steps.
std::string eval_line(int64_t step, const LossMeans& means);
std::string eval_json(int64_t step, const LossMeans& means);

// "1:02:03" or "2:03".
std::string format_duration(double seconds);

} // namespace distill::metrics
