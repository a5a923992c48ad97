#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"
#include "trainer/models/ops/rope.h"
#include "trainer/models/sequence.h"

// One decoder block as a pair of functions. N tokens, H hidden, A = (heads + 2 kv heads) * head_dim, D head_dim, F ffn,
// Q = heads * head_dim. Compute dtypes: bf16, fp16, fp32, fp64; statistics are fp32 (fp64 for fp64).
namespace distill::models {

// Views of a unit's flat buffer. The same struct names the parameters' gradients (fp32, or fp64 for fp64; accumulated
// into). An undefined gradient is not computed.
struct BlockParams {
  at::Tensor attn_norm_H;
  at::Tensor qkv_AH;
  at::Tensor qkv_bias_A; // undefined without qkv_bias
  at::Tensor q_norm_D; // undefined without qk_norm
  at::Tensor k_norm_D;
  at::Tensor o_HQ;
  at::Tensor mlp_norm_H;
  at::Tensor gate_up_2FH;
  at::Tensor down_HF;
  bool write_matrices = false; // of gradients: matrices hold nothing yet and are written, not added to
};

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat);

// What the forward pass keeps for the backward pass, and nothing else: the single source for the memory plan, for
// offload and for recompute. Holds no weight and no view of a slot. Per token in bf16 a Llama-8B block keeps 92 KiB:
// the two residual streams (16), q, k, v (12), attention output (8), gate and up (56), and fp32 statistics. The
// normalised inputs, the SwiGLU product and, with q/k norms, q and k after norm and RoPE are made again in the backward
// pass: elementwise work only, no matrix product.
struct BlockKept {
  at::Tensor x_NH; // block input; all that the recompute policy keeps
  at::Tensor attn_rstd_N;
  at::Tensor qkv_NA; // after RoPE; with q/k norms: before norm and RoPE
  at::Tensor q_rstd; // [N * heads], with q/k norms only
  at::Tensor k_rstd; // [N * kv heads]
  at::Tensor attn_NQ; // attention output
  at::Tensor lse;
  at::Tensor mid_NH; // residual stream after attention
  at::Tensor mlp_rstd_N;
  at::Tensor gate_up_N2F;

  bool input_only() const {
    return !gate_up_N2F.defined();
  }
  // Every tensor in one order, the undefined ones too: which of them a block keeps never changes.
  std::vector<at::Tensor*> places();
  // The defined ones.
  std::vector<at::Tensor*> tensors();
  int64_t bytes() const;
};

// Keeps the input alone: block_backward then runs the forward pass again first.
BlockKept keep_input_only(const at::Tensor& x_NH);

// Returns y_NH. `kept` null: nothing is kept (no gradient wanted).
at::Tensor block_forward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& x_NH, BlockKept* kept);

// Returns dx_NH and adds to `grads`. Consumes `kept`: its tensors are released as soon as they are used up.
at::Tensor block_backward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& dy_NH, BlockKept kept, BlockParams& grads);

// The two functions as the passes over a model call them. A simulated run puts recordings of them in their place.
struct BlockFunctions {
  std::function<at::Tensor(
      const ModelConfig&, const SequenceInfo&, const RopeAngles&, const BlockParams&, const at::Tensor&, BlockKept*)>
      forward = block_forward;
  std::function<at::Tensor(
      const ModelConfig&, const SequenceInfo&, const RopeAngles&, const BlockParams&, const at::Tensor&, BlockKept,
      BlockParams&)>
      backward = block_backward;
};

} // namespace distill::models
