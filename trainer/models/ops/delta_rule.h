#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/layer_kind.h"
#include "trainer/models/sequence.h"

// The gated delta rule (Yang et al. 2024, "Gated Delta Networks: Improving Mamba2 with Delta Rule"). A value head has a
// state S [Dk, Dv], which starts at zero with each segment. With a = exp(decay), for each token:
//
//   P = a S                      the state decays
//   w = beta (v - P^T k)         what is written: the value less what the state has for the key
//   S = P + k w^T
//   out = S^T q
//
// q and k are normalised to length 1 (x / sqrt(sum of x^2 + 1e-6)), q times Dk^-0.5; neighbouring value heads share a
// key head. The state, and all arithmetic, is fp32 (fp64 for fp64). N tokens, C channels: those of q, of k, of v; A
// value heads, V = A * Dv.
//
// The rule is computed as it is written, token by token; on Hopper in bf16, with sizes that are multiples of 8, in
// chunks of 64 tokens (delta_chunk_kernel.h), whose products have operands rounded to bf16 and fp32 sums. Each segment
// is computed by itself: what a token gets, and its gradient, are the same bits whatever stands around its segment.
namespace distill::models {

// The gates of each token and value head, fp32 (fp64 for fp64): [N, A].
struct DeltaGates {
  at::Tensor decay_NA; // -exp(a_log) softplus(a + dt_bias): the logarithm of the state's decay, at most 0
  at::Tensor beta_NA; // sigmoid(b)
};

// ba [N, 2A], b and then a, in the arithmetic's dtype; a_log and dt_bias [A].
DeltaGates delta_gates(const at::Tensor& ba_N2A, const at::Tensor& a_log_A, const at::Tensor& dt_bias_A);

// Returns the gradient of ba, and adds to those of a_log and dt_bias unless they are undefined. The gradients in
// `dgates` are overwritten.
at::Tensor delta_gates_backward(
    const DeltaGates& gates, const at::Tensor& ba_N2A, const at::Tensor& a_log_A, const at::Tensor& dt_bias_A,
    const DeltaGates& dgates, at::Tensor& da_log_A, at::Tensor& ddt_bias_A);

struct DeltaResult {
  at::Tensor out_NV;
  at::Tensor written_NV; // w of each token, which the backward pass reads
};

// qkv [N, C] contiguous, not normalised.
DeltaResult delta_rule_forward(
    const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq);

struct DeltaGradients {
  at::Tensor dqkv_NC;
  DeltaGates dgates;
};

DeltaGradients delta_rule_backward(
    const DeltaSpec& spec, const at::Tensor& dout_NV, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const at::Tensor& written_NV, const SequenceInfo& seq);

} // namespace distill::models
