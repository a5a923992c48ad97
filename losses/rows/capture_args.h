#pragma once

#include <cstdint>

#include "losses/rows/row_functions.h"
#include "losses/rows/sparse_args.h"

// The kernels that make a sparse teacher out of a teacher's logits take these arguments.
namespace distill::losses {

// There are R rows of V logits, after bias and softcap. Strides are in elements.
struct CaptureRowArgs {
  const void* logits = nullptr; // [R, V] fp32 or fp64
  ElementType logits_type = ElementType::kFloat32;
  int64_t num_rows = 0; // R
  int64_t vocab = 0; // V
  int64_t logits_stride = 0;
  int32_t* ids = nullptr; // [R, K], written
  int64_t ids_stride = 0;
  int64_t entries = 0; // K: of top-k at most V
  // Only samples have these:
  const int64_t* keys = nullptr; // [R], the tokens' keys
  float* weights = nullptr; // [R, K], written
  int64_t weights_stride = 0;
  uint64_t seed = 0;
  double temperature = 1;
  double exponent = 1; // samples are drawn from p^exponent, normalised
};

enum class CaptureStage {
  kTopK, // ids of the K largest logits, in order; the lower column first where they are equal
  kSamples, // K draws with replacement and their weights p / (K times the probability of a draw)
};

// A row's sums are taken over at most kMaxSegments segments of columns, in one order whatever the number of rows.
inline constexpr int64_t kMaxSegments = 1024;

DISTILL_ROW_INLINE int64_t segment_columns(int64_t vocab) {
  return ((vocab + kMaxSegments - 1) / kMaxSegments + 31) / 32 * 32;
}

// These are base-2 multipliers of (logit - max): for p, and for the draws.
template <typename T>
struct SampleScales {
  T p;
  T draw;
};

template <typename T>
DISTILL_ROW_INLINE SampleScales<T> sample_scales(const CaptureRowArgs& a) {
  const double p = kLog2E<double> / a.temperature;
  return {static_cast<T>(p), static_cast<T>(p * a.exponent)};
}

// Returns the weight of a draw. below: logit - max. p_sum, draw_sum: of 2^(below * scale) over the row. NaN stays NaN.
template <typename T>
DISTILL_ROW_INLINE float sample_weight(
    T below, const SampleScales<T>& scales, double p_sum, double draw_sum, int64_t draws) {
  const double ratio = scales.p == scales.draw
      ? 1.0
      : static_cast<double>(row_exp2(below * (scales.p - scales.draw))) * (draw_sum / p_sum);
  return static_cast<float>(ratio / static_cast<double>(draws) + (draw_sum - draw_sum));
}

} // namespace distill::losses
