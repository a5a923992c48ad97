// Stands in for the file of this name where a kernel is compiled for a CPU: exp2 and log2 with the errors that the PTX
// manual allows the GPU's instructions, so that a computation which needs better ones shows it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "losses/rows/row_inline.h"

namespace distill::losses {

// ex2.approx.ftz.f32: a relative error of 2^-22.
DISTILL_ROW_INLINE float row_exp2(float x) {
  if (x < -126.0F) {
    return 0.0F;
  }
  int exponent = 0;
  const double fraction = std::frexp(std::exp2(static_cast<double>(x)), &exponent);
  return static_cast<float>(std::ldexp(std::rint(fraction * 0x1p22) * 0x1p-22, exponent));
}

// lg2.approx.ftz.f32: an absolute error of 2^-22 on (0.5, 2), and a relative one beyond.
DISTILL_ROW_INLINE float row_log2(float x) {
  const double exact = std::log2(static_cast<double>(x));
  return static_cast<float>(std::abs(exact) < 1 ? std::rint(exact * 0x1p21) * 0x1p-21 : exact);
}

DISTILL_ROW_INLINE float row_tanh(float x) {
  return std::tanh(x);
}

} // namespace distill::losses
