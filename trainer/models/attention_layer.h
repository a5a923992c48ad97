#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/layer_kind.h"
#include "trainer/models/ops/rope.h"
#include "trainer/models/projection.h"
#include "trainer/models/sequence.h"

// The attention sublayer as a pair of functions. N tokens, H hidden, D head_dim, Q = heads * D,
// A = (heads + 2 kv heads) * D, and Q more with gates of the output.
namespace distill::models {

struct AttentionParams {
  Projection qkv; // [A, H], biases [A] if the kind has some
  Projection o; // [H, Q]
  at::Tensor q_norm; // [D] or, over all heads, [Q]; undefined without q/k norms
  at::Tensor k_norm;
};

struct AttentionSaved {
  at::Tensor qkv_NA; // after RoPE; with q/k norms: before norm and RoPE
  at::Tensor q_rstd; // [N * heads], over all heads [N]; with q/k norms only
  at::Tensor k_rstd; // [N * kv heads], or [N]
  at::Tensor v_rstd; // [N * kv heads]; with a norm of v only
  at::Tensor out_NQ; // attention's output, which, with its gate, the projection o reads
  at::Tensor lse;

  // Lists the tensors in the order of BlockSaved::all().
  std::vector<at::Tensor*> all();
};

// The kind of a layer and the micro-batch with which its attention computes.
struct AttentionContext {
  const AttentionSpec& spec;
  double norm_eps; // of the norms of q and k
  const SequenceInfo& seq;
  RopeAngles rope; // undefined: none
};

// Returns the output projection [N, H], added to `residual_NH` where that is defined. Fills `saved` and input.rstd_N;
// if attention's output is there already, saved.out_NQ with saved.lse, it is not computed again.
at::Tensor attention_layer_forward(
    const AttentionContext& context, const AttentionParams& params, SublayerInput& input, const at::Tensor& residual_NH,
    AttentionSaved& saved);

// Returns the gradient of input.x, given `dy_NH`, the gradient of the sublayer's output, and `dstream_NH`, that of the
// stream which goes on past the sublayer. Adds to `grads` and `dnorm_H`, the gradient of the input's norm. dy is
// released, and `saved` is, each tensor after its last use.
at::Tensor attention_layer_backward(
    const AttentionContext& context, const AttentionParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, AttentionSaved& saved, AttentionParams& grads, at::Tensor& dnorm_H);

} // namespace distill::models
