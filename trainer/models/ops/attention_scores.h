#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/ops/attention_options.h"

// The softmax of a tile of causal attention's scores, for attention_math.h. K key/value heads, R = heads / K * queries
// rows of each, S keys. Scores and statistics are fp32 (fp64 for fp64).
namespace distill::models {

// `queries` tokens that follow one another, the first of which is the key with the number `offset`, and S keys.
struct ScoreTile {
  int64_t queries = 0;
  int64_t offset = 0;
};

struct SoftmaxResult {
  at::Tensor probs_KRS; // of the compute dtype; 0 for keys that a query does not see
  at::Tensor lse_KR; // log-sum-exp of the scaled scores
};

// `scores_KRS`: products of queries and keys, not scaled; overwritten.
SoftmaxResult attention_softmax(
    at::Tensor scores_KRS, at::ScalarType dtype, const ScoreTile& tile, const AttentionOptions& options);

struct SoftmaxGradient {
  at::Tensor probs_KRS; // again, as in the forward pass
  at::Tensor dscores_KRS; // of the compute dtype: the gradient of the products of queries and keys
};

// `dprobs_KRS`: the gradient of the probabilities; `row_dot_KR`: the sum over a row of output * gradient of the output.
// Overwrites scores and dprobs.
SoftmaxGradient attention_softmax_backward(
    at::Tensor scores_KRS, at::Tensor dprobs_KRS, const at::Tensor& lse_KR, const at::Tensor& row_dot_KR,
    at::ScalarType dtype, const ScoreTile& tile, const AttentionOptions& options);

} // namespace distill::models
