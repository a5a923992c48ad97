#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// Moves the weight gradients of G groups of rows, as the grouped product rounded them, to the gradients' buffer on
// CUDA. What the product wrote for a group without rows is undefined and never read: such a gradient is zero.
namespace distill::models {

struct GroupGradientArgs {
  const void* parts; // [G, size] contiguous, bf16
  const int32_t* ends; // [G]: the end of each group's rows
  void* grads; // [G, size] contiguous
  int64_t groups; // G
  int64_t size; // elements of a group's gradient, a multiple of 8
  bool accumulate; // false: grads are written, true: added to
  ElementType type; // of grads: fp32, or bf16
};

const char* launch_group_gradient(const GroupGradientArgs& args, CUstream_st* stream);

} // namespace distill::models
