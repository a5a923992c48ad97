#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include "trainer/teacher_cache/row_format.h"

// The bytes of rows that hold a few tokens of the vocabulary with their numbers (RowFormat::is_sparse): ids in 2, 3 or
// 4 bytes, as many as the vocabulary needs; then log-probabilities in float16 or float32 and the tail in float32
// (kTopK), or weights in float32, unless they are all 1 / S (kSampled). R tokens, W bytes of a row, K entries.
namespace distill::teacher_cache {

inline constexpr int64_t kMaxColumns = int64_t{1} << 31;

// The contents of the rows of R tokens.
struct SparseRows {
  at::Tensor ids_RK; // int32; -1: none
  at::Tensor values_RK; // log-probabilities in nats, or weights; floating
  at::Tensor tail_R; // the probability of all other tokens (kTopK); floating
};

int64_t sparse_row_bytes(const RowFormat& format);

// Makes rows [R, W], uint8, on the device of the tensors (or meta), and reads them: values in the stored dtype.
at::Tensor encode_sparse(const RowFormat& format, const SparseRows& rows);
SparseRows decode_sparse(const RowFormat& format, const at::Tensor& rows_RW);

// Explains what is wrong with a row in host memory that no teacher can have written: ids outside of the vocabulary or
// twice in a row of top-k, numbers that are no probabilities, no draw at all. The text is empty if nothing is, and
// always for hidden states.
std::string row_problem(const RowFormat& format, const uint8_t* row);

// DataLoss: one of `count` rows has a problem. The message has the number of the first one, and the problem.
absl::Status check_rows(const RowFormat& format, const uint8_t* rows, int64_t count);

} // namespace distill::teacher_cache
