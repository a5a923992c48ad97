#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/layer_kind.h"
#include "trainer/models/ops/delta_rule.h"
#include "trainer/models/projection.h"
#include "trainer/models/sequence.h"

// The sublayer of a gated delta rule, in attention's place, as a pair of functions: one projection to q, k, v and the
// gate z of the output, one to the gates b and a; a convolution over q, k, v; the rule; a gated norm; a projection. N
// tokens, H hidden, A value heads, V = A * Dv, C channels of q, k, v.
namespace distill::models {

struct DeltaParams {
  Projection conv; // [C, 1, W], of the convolution; never in float8
  Projection ba; // [2A, H]; never in float8
  Projection qkvz; // [C + V, H]
  Projection out; // [H, V]
  at::Tensor a_log_A;
  at::Tensor dt_bias_A;
  at::Tensor gate_norm_D; // over each head
};

// In bf16 with 16 key and 32 value heads of 128 this is 40 KiB for a token. Convolution, gates, norms of q and k and
// the gated norm are computed again in the backward pass. So are the states: a state for each 64 tokens would be
// another 32 KiB for a token, and the backward pass walks through the tokens anyway.
struct DeltaSaved {
  at::Tensor qkvz_NW; // before the convolution
  at::Tensor ba_N2A; // fp32
  at::Tensor out_NV; // the rule's output, before its norm
  at::Tensor written_NV; // what the rule wrote into its states

  // Lists the tensors in the order of BlockSaved::all().
  std::vector<at::Tensor*> all();
};

struct DeltaContext {
  const DeltaSpec& spec;
  double norm_eps;
  const SequenceInfo& seq;
};

// Arguments and results as of attention_layer_forward: saved.out_NV with saved.written_NV is what is not computed
// again.
at::Tensor delta_layer_forward(
    const DeltaContext& context, const DeltaParams& params, SublayerInput& input, const at::Tensor& residual_NH,
    DeltaSaved& saved);

at::Tensor delta_layer_backward(
    const DeltaContext& context, const DeltaParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, DeltaSaved& saved, DeltaParams& grads, at::Tensor& dnorm_H);

} // namespace distill::models
