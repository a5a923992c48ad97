#pragma once

#include <cstring>

#include "trainer/models/ops/normal_math.h"
#include "trainer/optim/adamw_kernel.h"

// The mathematics of one element of an AdamW step, which the CPU and CUDA share. Every sum of a product is an explicit
// fmaf, so that no compiler decides how it is rounded.
namespace distill::optim {

DISTILL_HOST_DEVICE_INLINE AdamWFactors factors_of(const AdamWStep& step) {
  AdamWFactors f{};
  const auto lr = static_cast<float>(step.lr);
  const float count = *step.step_count;
  f.beta1 = static_cast<float>(step.beta1);
  f.beta2 = static_cast<float>(step.beta2);
  f.eps = static_cast<float>(step.eps);
  f.decay = lr * static_cast<float>(step.weight_decay);
  f.grad_scale = *step.grad_scale;
  f.step_size = lr / (1.0F - powf(f.beta1, count));
  f.bias_correction2_sqrt = sqrtf(1.0F - powf(f.beta2, count));
  f.skipped = *step.found_inf != 0 ? 1 : 0;
  f.step = static_cast<uint64_t>(count);
  return f;
}

// `decays`: whether weight decay applies to the element.
DISTILL_HOST_DEVICE_INLINE void update_element(
    const AdamWFactors& f, bool decays, float gradient, float& param, float& exp_avg, float& exp_avg_sq) {
  gradient /= f.grad_scale;
  if (decays) {
    param = fmaf(-f.decay, param, param);
  }
  exp_avg = fmaf(f.beta1, exp_avg, fmaf(-f.beta1, gradient, gradient));
  const float square = gradient * gradient;
  exp_avg_sq = fmaf(f.beta2, exp_avg_sq, fmaf(-f.beta2, square, square));
  param -= f.step_size * exp_avg / (sqrtf(exp_avg_sq) / f.bias_correction2_sqrt + f.eps);
}

constexpr int64_t kRoundingGroup = 4; // elements that share the words of one call

// Random words for elements kRoundingGroup * group and the following ones, a word for each: the low half is for the
// first moment, the high half for the second. They depend on the step, the unit and the position in the whole unit
// alone, so that any number of ranks, any pieces and a resumed run round alike.
DISTILL_HOST_DEVICE_INLINE void rounding_words(
    uint64_t step, int64_t unit, int64_t group, uint32_t words[kRoundingGroup]) {
  models::philox(static_cast<uint64_t>(unit) << 44 ^ step, static_cast<uint64_t>(group), words);
}

// Rounds a finite value to one of its two neighbours in bf16, up in magnitude with the probability of what truncation
// would lose, so that the expected value is the value. Returns the bits of the bf16. `random`: 16 random bits.
DISTILL_HOST_DEVICE_INLINE uint16_t round_stochastically(float value, uint32_t random) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + random) >> 16);
}

DISTILL_HOST_DEVICE_INLINE float widen(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value = 0;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
DISTILL_HOST_DEVICE_INLINE float widen(float value) {
  return value;
}

} // namespace distill::optim
