#pragma once

#include <cstdint>

#include "losses/rows/row_args.h"

// Kernels that move 16 bytes at a time depend on where rows begin in memory.
namespace distill::losses {

constexpr int64_t kVectorBytes = 16;

constexpr int64_t element_bytes(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : (type == ElementType::kFloat32 ? 4 : 2);
}

// Returns whether all rows of one matrix begin as far from a multiple of kVectorBytes as those of the other. Strides
// are in elements of `bytes` bytes.
inline bool rows_begin_alike(
    const void* one, int64_t one_stride, const void* other, int64_t other_stride, int64_t bytes) {
  const intptr_t between = reinterpret_cast<intptr_t>(one) - reinterpret_cast<intptr_t>(other);
  return between % kVectorBytes == 0 && (one_stride - other_stride) * bytes % kVectorBytes == 0;
}

} // namespace distill::losses
