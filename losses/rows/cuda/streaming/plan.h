#pragma once

#include "losses/rows/row_args.h"

// How rows are divided for the streaming row kernel.
namespace distill::losses::streaming {

// Columns of a block's slice. The first slice may begin up to a vector before the row; slices are whole vectors.
inline int64_t slice_columns(int64_t vocab, int blocks, int vector) {
  return ((vocab + vector - 1 + blocks - 1) / blocks + vector - 1) / vector * vector;
}

// Whether both sides' rows begin equally far from a multiple of 16 bytes.
inline bool sides_begin_alike(const RowArgs& args) {
  const int64_t bytes =
      args.logits_type == ElementType::kFloat64 ? 8 : (args.logits_type == ElementType::kFloat32 ? 4 : 2);
  const int64_t between = reinterpret_cast<intptr_t>(args.student) - reinterpret_cast<intptr_t>(args.teacher);
  return between % 16 == 0 && (args.student_stride - args.teacher_stride) * bytes % 16 == 0;
}

} // namespace distill::losses::streaming
