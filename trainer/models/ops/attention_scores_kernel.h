#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// The softmax of a tile of attention's scores, and its gradient, on CUDA. Rows are queries of several heads: row r is
// query r % queries, which sees the keys from `offset + r % queries` back, `window` of them. Arithmetic, scores and
// statistics are fp32 (fp64 for fp64); a thread block has one row, and adds in a fixed order.
namespace distill::models {

struct AttentionScoresArgs {
  void* scores; // [rows, keys] fp32 (fp64 for fp64): products of queries and keys, not scaled
  void* probs; // [rows, keys] of `type`, written; may be `scores` where that has the same type
  void* lse; // [rows] fp32 (fp64 for fp64): log-sum-exp of the scaled scores; forward writes it, backward reads it
  const void* row_dot; // [rows] fp32 (fp64 for fp64); backward only: the sum of output * gradient of the output
  void* dprobs; // [rows, keys] fp32 (fp64 for fp64); backward only: the gradient of `probs`
  void* dscores; // [rows, keys] of `type`; backward only, written: the gradient of `scores`; may be `dprobs`
  int64_t rows;
  int64_t keys;
  int64_t queries;
  int64_t offset;
  int64_t window; // at least `keys`: none
  double scale;
  double softcap; // of the scaled scores; 0: none
  ElementType type;
};

// probs = exp(scaled scores - lse), 0 for keys that the query does not see; and lse.
const char* launch_attention_softmax(const AttentionScoresArgs& args, CUstream_st* stream);

// probs again, and dscores = probs * (dprobs - row_dot) * the slope of the scaled scores.
const char* launch_attention_softmax_backward(const AttentionScoresArgs& args, CUstream_st* stream);

} // namespace distill::models
