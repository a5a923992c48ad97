#pragma once

#include <ATen/core/Tensor.h>

#include "losses/rows/capture_args.h"

// These functions make top-k and samples of rows of logits on the device of their tensors. On meta tensors nothing
// runs. Nothing is allocated. Logits are those after bias and softcap, fp32 or fp64, with contiguous columns.
namespace distill::losses {

// Writes the columns of the K largest logits, in order, and of equal ones the lower first. ids_RK: int32, K at most
// V and kMaxEntries.
void run_topk(const at::Tensor& logits_RV, at::Tensor ids_RK);

struct SampleOptions {
  int64_t samples = 32; // S, 1 to kMaxEntries
  uint64_t seed = 0;
  double exponent = 1; // in (0, 1]: draws are from p^exponent, normalised; below 1 rare tokens are drawn more often
};

// Writes S draws with replacement from softmax(logits / temperature)^exponent and their weights p / (S * probability of
// the draw), whose sum over draws of w f(id) is an unbiased estimate of sum p f. The draws follow from seed and keys_R
// (int64) alone. ids_RS: int32; weights_RS: fp32.
void run_samples(
    const at::Tensor& logits_RV, const at::Tensor& keys_R, double temperature, const SampleOptions& options,
    at::Tensor ids_RS, at::Tensor weights_RS);

} // namespace distill::losses
