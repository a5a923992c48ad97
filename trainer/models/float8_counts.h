#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "data/base/enum_names.h"
#include "trainer/models/ops/float8.h"

namespace distill::models {

// The operands whose rounding is counted while a model is trained in float8. The activations that RMSNorm makes are
// left out: its own kernel rounds them. The gradients of outputs serve both products of the backward pass and are
// counted once; what they are multiplied by for the gradients of weights, the inputs times the gradients' scales, has
// its own count.
enum class Float8Operand {
  kActivations,
  kGradients,
  kWeightGradients,
};
constexpr auto enum_names(Float8Operand) {
  return base::names_of<Float8Operand>("activations", "gradients", "weight_gradients");
}
inline constexpr int kFloat8Operands = enum_names(Float8Operand{}).size();

// For each operand, the tensor that ops/float8.h adds to; undefined: the operand is not counted.
using Float8CountsOf = std::array<at::Tensor, kFloat8Operands>;

inline const at::Tensor& counts_of(const Float8CountsOf& counts, Float8Operand operand) {
  return counts[static_cast<size_t>(operand)];
}

} // namespace distill::models
