#pragma once

#include "losses/rows/cuda/cluster/tiles.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// The softcap of a side; constants of the launch, which take no registers.
struct Softcap {
  float cap; // 0: none
  float inverse;
  float to_log2; // 2 log2(e) / cap

  // Logits of at most this share of the cap may take a polynomial: tanh(x) / x in x^2, the minimax one of degree 5 on
  // [0, 0.5625], with a relative error of 3e-8 and 1.5e-7 with its roundings. It takes eight operations and no
  // exponential, of which a multiprocessor computes one for each eight operations.
  static constexpr float kSmall = 0.75F;

  __device__ __forceinline__ bool small(float logit) const {
    return fabsf(logit) < kSmall * cap;
  }

  __device__ __forceinline__ float of_small(float logit) const {
    const float x = logit * inverse;
    const float square = x * x;
    float y = -0x1.3515aap-8F;
    y = fmaf(y, square, 0x1.40d8acp-6F);
    y = fmaf(y, square, -0x1.b4ff62p-5F);
    y = fmaf(y, square, 0x1.10e782p-3F);
    y = fmaf(y, square, -0x1.55545ap-2F);
    return logit * fmaf(y, square, 1.0F);
  }

  // From the errors of ex2.approx (2^-22) and rcp.approx (one unit in the last place), the absolute error is at most
  // about 4e-7 times the cap.
  __device__ __forceinline__ float of_any(float logit) const {
    const float reciprocal = approximate_reciprocal(row_exp2(logit * to_log2) + 1.0F);
    return fmaf(-2.0F * cap, reciprocal, cap);
  }

  // Columns below kPair of a vector take the polynomial where both are small, the others never, so that both units have
  // work. Equal logits may so become numbers that differ by 4e-7 times the cap.
  static constexpr int kPair = 2;

  __device__ __forceinline__ void apply(float (&z)[kVector]) const {
    z[2] = of_any(z[2]);
    z[3] = of_any(z[3]);
    if (small(fmaxf(fabsf(z[0]), fabsf(z[1])))) {
      z[0] = of_small(z[0]);
      z[1] = of_small(z[1]);
    } else {
      z[0] = of_any(z[0]);
      z[1] = of_any(z[1]);
    }
  }

  // One column as apply() makes it. `other`: the other logit of the pair, -inf where there is no such column.
  __device__ __forceinline__ float of_column(int column, float logit, float other) const {
    return column % kVector < kPair && small(fmaxf(fabsf(logit), fabsf(other))) ? of_small(logit) : of_any(logit);
  }
};

__device__ __forceinline__ Softcap student_softcap(const RowConstants<float>& c) {
  return {c.student_softcap, c.student_inverse_cap, c.student_cap_to_log2};
}

__device__ __forceinline__ Softcap teacher_softcap(const RowConstants<float>& c) {
  return {c.teacher_softcap, c.teacher_inverse_cap, c.teacher_cap_to_log2};
}

// d capped logit / d logit of the student.
__device__ __forceinline__ float slope_at(float capped_logit, const RowConstants<float>& c) {
  const float slope = fmaf(-capped_logit * c.inverse_square_of_cap, capped_logit, 1.0F);
  return c.student_softcap > 0 ? slope : 1.0F; // an infinite logit stays one without a softcap
}

#endif

} // namespace distill::losses::cluster
