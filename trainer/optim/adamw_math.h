#pragma once

#include "trainer/models/ops/rounding_math.h"
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

// The words that moments are rounded with: the low half is for the first moment, the high half for the second.
constexpr int64_t kMomentsDraw = 0;
using models::kRoundingGroup;
using models::round_stochastically;
using models::widen;

} // namespace distill::optim
