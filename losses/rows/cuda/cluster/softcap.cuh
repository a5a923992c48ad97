#pragma once

#include "losses/rows/cuda/cluster/tiles.cuh"

namespace distill::losses::cluster {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

// A Softcap is that of one side; it has constants of the launch, which take no registers.
struct Softcap {
  float cap; // 0: none
  float inverse;
  float to_log2; // 2 log2(e) / cap

  // Logits of at most this share of the cap may take a polynomial: tanh(x) / x in x^2, the minimax one of degree 5 on
  // [0, 0.5625], with a relative error of 3e-8 and 1.5e-7 with its roundings. It takes eight operations and no
  // exponential, of which a multiprocessor computes one for each eight operations.
  static constexpr float kSmall = 0.75F;

  // Columns below kPair of a vector take the polynomial where both are small, the others never, so that both units have
  // work. Equal logits may so become numbers that differ by 4e-7 times the cap.
  static constexpr int kPair = 2;

  __device__ __forceinline__ bool small(float logit) const {
    return fabsf(logit) < kSmall * cap;
  }

  // Returns the ratio of the capped logit to the logit, which is small; kToLog2: the ratio times log2(e).
  template <bool kToLog2>
  __device__ __forceinline__ float ratio_of_small(float logit) const {
    constexpr double kFactor = kToLog2 ? kLog2E<double> : 1.0;
    const float x = logit * inverse;
    const float square = x * x;
    auto y = static_cast<float>(-0x1.3515aap-8 * kFactor);
    y = fmaf(y, square, static_cast<float>(0x1.40d8acp-6 * kFactor));
    y = fmaf(y, square, static_cast<float>(-0x1.b4ff62p-5 * kFactor));
    y = fmaf(y, square, static_cast<float>(0x1.10e782p-3 * kFactor));
    y = fmaf(y, square, static_cast<float>(-0x1.55545ap-2 * kFactor));
    return fmaf(y, square, static_cast<float>(kFactor));
  }

  // Returns a number of which the capped logit is cap - 2 cap times it. From the errors of ex2.approx (2^-22) and
  // rcp.approx (one unit in the last place), its absolute error is at most about 4e-7 times the cap.
  __device__ __forceinline__ float reciprocal_of_any(float logit) const {
    return approximate_reciprocal(row_exp2(logit * to_log2) + 1.0F);
  }

  __device__ __forceinline__ float of_any(float logit) const {
    return fmaf(-2.0F * cap, reciprocal_of_any(logit), cap);
  }

  __device__ __forceinline__ void apply(float (&z)[kVector]) const {
    z[2] = of_any(z[2]);
    z[3] = of_any(z[3]);
    if (small(fmaxf(fabsf(z[0]), fabsf(z[1])))) {
      z[0] *= ratio_of_small<false>(z[0]);
      z[1] *= ratio_of_small<false>(z[1]);
    } else {
      z[0] = of_any(z[0]);
      z[1] = of_any(z[1]);
    }
  }

  // Returns the capped logit times log2(e), minus `scaled`.
  __device__ __forceinline__ float exponent_of_small(float logit, float scaled) const {
    return fmaf(logit, ratio_of_small<true>(logit), -scaled);
  }

  __device__ __forceinline__ float exponent_of_any(float logit, float scaled) const {
    return fmaf(-2.0F * cap * kLog2E<float>, reciprocal_of_any(logit), fmaf(cap, kLog2E<float>, -scaled));
  }
};

__device__ __forceinline__ Softcap student_softcap(const RowConstants<float>& c) {
  return {c.student_softcap, c.student_inverse_cap, c.student_cap_to_log2};
}

__device__ __forceinline__ Softcap teacher_softcap(const RowConstants<float>& c) {
  return {c.teacher_softcap, c.teacher_inverse_cap, c.teacher_cap_to_log2};
}

// Makes of both sides' logits the capped ones, times log2(e) and minus the scaled bases. The pairs of
// both sides take one branch: the polynomial where all four logits are small.
template <bool kTeacher>
__device__ __forceinline__ void softcap_exponents(
    const RowConstants<float>& c, const float (&zs)[kVector], const float (&zt)[kVector], float student_scaled,
    float teacher_scaled, float (&xs)[kVector], float (&xt)[kVector]) {
  const Softcap student = student_softcap(c);
  const Softcap teacher = teacher_softcap(c);
  const auto of_any = [&](int j) {
    xs[j] = student.exponent_of_any(zs[j], student_scaled);
    if constexpr (kTeacher) {
      xt[j] = teacher.exponent_of_any(zt[j], teacher_scaled);
    }
  };
  of_any(2);
  of_any(3);
  if (student.small(fmaxf(fabsf(zs[0]), fabsf(zs[1]))) &&
      (!kTeacher || teacher.small(fmaxf(fabsf(zt[0]), fabsf(zt[1]))))) {
#pragma unroll
    for (int j = 0; j < Softcap::kPair; ++j) {
      xs[j] = student.exponent_of_small(zs[j], student_scaled);
      if constexpr (kTeacher) {
        xt[j] = teacher.exponent_of_small(zt[j], teacher_scaled);
      }
    }
  } else {
    of_any(0);
    of_any(1);
  }
}

// Returns d capped logit / d logit of the student, whose logit is finite.
__device__ __forceinline__ float finite_slope_at(float capped_logit, const RowConstants<float>& c) {
  return fmaf(-capped_logit * c.inverse_square_of_cap, capped_logit, 1.0F);
}

// Returns the same of any logit; an infinite one stays one without a softcap.
__device__ __forceinline__ float slope_at(float capped_logit, const RowConstants<float>& c) {
  return c.student_softcap > 0 ? finite_slope_at(capped_logit, c) : 1.0F;
}

#endif

} // namespace distill::losses::cluster
