#pragma once

#include <ATen/core/Tensor.h>

#include "losses/rows/capture_args.h"

// Top-k and samples of rows of logits, on the device of their tensors. Nothing runs on meta tensors, and nothing is
// allocated. Logits after bias and softcap, fp32 or fp64, columns contiguous.
namespace distill::losses {

// The columns of the K largest logits, in order; the lower column first where they are equal. ids_RK: int32, K at most
// V and kMaxEntries.
void run_topk(const at::Tensor& logits_RV, at::Tensor ids_RK);

struct SampleOptions {
  int64_t samples = 32; // S, 1 to kMaxEntries
  uint64_t seed = 0;
  double exponent = 1; // in (0, 1]: drawn from p^exponent, normalised; below 1 rare tokens are drawn more often
};

// S draws with replacement from softmax(logits / temperature)^exponent and their weights p / (S * probability of the
// draw), whose sum over draws of w f(id) is an unbiased estimate of sum p f. The draws follow from the seed and keys_R
// (int64) alone. ids_RS: int32; weights_RS: fp32.
void run_samples(
    const at::Tensor& logits_RV, const at::Tensor& keys_R, double temperature, const SampleOptions& options,
    at::Tensor ids_RS, at::Tensor weights_RS);

} // namespace distill::losses
