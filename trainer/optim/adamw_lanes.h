// The CPU's AdamW step, compiled once per instruction set: the including file defines DISTILL_ADAMW_NAMESPACE and is
// built with that set's flags. The compiler turns its loops over kLanes elements into vectors.
#pragma once

#include "trainer/optim/adamw_cpu.h"
#include "trainer/optim/adamw_math.h"

namespace distill::optim::DISTILL_ADAMW_NAMESPACE {
namespace {

constexpr int64_t kLanes = 64; // elements whose values are in registers and on the stack together

// Rounds to nearest, ties to even, as the kernel's copy does. NaN stays NaN.
DISTILL_HOST_DEVICE_INLINE uint16_t nearest_bf16(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<uint16_t>(value != value ? 0x7FFFU : rounded);
}

// The pointers of some elements of the same type of decay.
template <typename Moment, typename Gradient>
struct Lanes {
  float* params;
  const Gradient* gradient;
  Moment* exp_avg;
  Moment* exp_avg_sq;
  uint16_t* copy; // null: none
  int64_t unit, first; // of the first element
};

// A random word for each of the `count` elements from position `first` on. Returns that of the first one.
DISTILL_HOST_DEVICE_INLINE const uint32_t* words_of(
    const AdamWFactors& f, int64_t unit, int64_t first, int64_t count, uint32_t words[kLanes + 2 * kRoundingGroup]) {
  const int64_t group = first / kRoundingGroup;
  const int64_t groups = (first + count - 1) / kRoundingGroup - group + 1;
  for (int64_t g = 0; g < groups; ++g) {
    models::rounding_words(f.step, unit, kMomentsDraw, group + g, words + g * kRoundingGroup);
  }
  return words + first % kRoundingGroup;
}

template <bool kDecays, typename Moment, typename Gradient>
DISTILL_HOST_DEVICE_INLINE void step_lanes(
    const AdamWFactors& f, const Lanes<Moment, Gradient>& lanes, int64_t begin, int64_t count) {
  float* __restrict const params = lanes.params + begin;
  const Gradient* __restrict const gradient = lanes.gradient + begin;
  Moment* __restrict const exp_avg = lanes.exp_avg + begin;
  Moment* __restrict const exp_avg_sq = lanes.exp_avg_sq + begin;
  if constexpr (sizeof(Moment) == sizeof(float)) {
    for (int64_t i = 0; i < count; ++i) {
      update_element(f, kDecays, widen(gradient[i]), params[i], exp_avg[i], exp_avg_sq[i]);
    }
  } else {
    uint32_t buffer[kLanes + 2 * kRoundingGroup];
    const uint32_t* const words = words_of(f, lanes.unit, lanes.first + begin, count, buffer);
    for (int64_t i = 0; i < count; ++i) {
      float first = widen(exp_avg[i]), second = widen(exp_avg_sq[i]);
      update_element(f, kDecays, widen(gradient[i]), params[i], first, second);
      exp_avg[i] = round_stochastically(first, words[i] & 0xFFFFU);
      exp_avg_sq[i] = round_stochastically(second, words[i] >> 16);
    }
  }
  if (lanes.copy != nullptr) {
    uint16_t* __restrict const copy = lanes.copy + begin;
    for (int64_t i = 0; i < count; ++i) {
      copy[i] = nearest_bf16(params[i]);
    }
  }
}

template <bool kDecays, typename Moment, typename Gradient>
void step_range(const AdamWFactors& f, const Lanes<Moment, Gradient>& lanes, int64_t begin, int64_t end) {
  for (; begin + kLanes <= end; begin += kLanes) {
    step_lanes<kDecays>(f, lanes, begin, kLanes);
  }
  if (begin < end) {
    step_lanes<kDecays>(f, lanes, begin, end - begin);
  }
}

template <typename Moment, typename Gradient>
void step_typed(const AdamWArgs& args, int64_t begin, int64_t end) {
  const AdamWFactors f = *args.factors;
  const Lanes<Moment, Gradient> lanes{
      args.params,
      static_cast<const Gradient*>(args.gradient),
      static_cast<Moment*>(args.exp_avg),
      static_cast<Moment*>(args.exp_avg_sq),
      static_cast<uint16_t*>(args.bf16_copy),
      args.unit,
      args.first};
  int64_t decay_begin = args.decay_begin < begin ? begin : args.decay_begin;
  decay_begin = f.decay == 0 || decay_begin > end ? end : decay_begin;
  step_range<false>(f, lanes, begin, decay_begin);
  step_range<true>(f, lanes, decay_begin, end);
}

} // namespace

void adamw_range(const AdamWArgs& args, int64_t begin, int64_t end) {
  if (args.bf16_moments) {
    args.bf16_gradient ? step_typed<uint16_t, uint16_t>(args, begin, end)
                       : step_typed<uint16_t, float>(args, begin, end);
  } else {
    args.bf16_gradient ? step_typed<float, uint16_t>(args, begin, end) : step_typed<float, float>(args, begin, end);
  }
}

} // namespace distill::optim::DISTILL_ADAMW_NAMESPACE
