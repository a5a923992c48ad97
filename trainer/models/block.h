#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <functional>
#include <vector>

#include "trainer/models/float8_counts.h"
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
  // Of the rows of float8 weights (trainer/models/ops/float8.h); undefined: the weight is in the compute dtype.
  at::Tensor qkv_scale_A;
  at::Tensor o_scale_H;
  at::Tensor gate_up_scale_2F;
  at::Tensor down_scale_H;
  Float8CountsOf float8_counts; // of a model that is trained in float8
  bool write_matrices = false; // of gradients: matrices are uninitialised, so products overwrite them instead of adding
};

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat);
// The same of parameters that `find` returns by name; undefined: the block has no such parameter.
BlockParams block_params(const std::function<at::Tensor(std::string_view name)>& find);

// By Product: whether the product's weight is float8.
std::array<bool, kProducts> float8_weights(const BlockParams& params);

// The tensors that the forward pass saves for the backward pass. Recomputation, offload and the memory plan read them
// from this struct alone: a new tensor needs a member here and its name in all(), and nothing in the plan. It holds no
// weight and no view of a slot. In bf16 a Llama-8B block saves 92 KiB per token: the two residual streams (16), q, k, v
// (12), attention output (8), gate and up (56), and fp32 statistics. The normalised inputs, the SwiGLU product and,
// with q/k norms, q and k after norm and RoPE are recomputed in the backward pass, which takes elementwise work only
// and no matrix product.
struct BlockSaved {
  at::Tensor x_NH; // block input; the only tensor that the recompute policy saves
  at::Tensor attn_rstd_N;
  at::Tensor qkv_NA; // after RoPE; with q/k norms: before norm and RoPE
  at::Tensor q_rstd; // [N * heads], with q/k norms only
  at::Tensor k_rstd; // [N * kv heads]
  at::Tensor attn_NQ; // attention output
  at::Tensor lse;
  at::Tensor mid_NH; // residual stream after attention
  at::Tensor mlp_rstd_N;
  at::Tensor gate_up_N2F;
  at::Tensor o_NH; // output projection before its norm; with norms after the sublayers only
  at::Tensor down_NH; // down projection before its norm; with norms after the sublayers only

  bool input_only() const {
    return !gate_up_N2F.defined();
  }
  // Every tensor in a fixed order, undefined ones included.
  std::vector<at::Tensor*> all();
  // The defined tensors, in the same order.
  std::vector<at::Tensor*> tensors();
  int64_t bytes() const;
};

// Saves the input alone: block_backward then runs the forward pass again first.
BlockSaved save_input_only(const at::Tensor& x_NH);

// Returns y_NH. A null `saved` means that no backward pass follows and nothing is saved.
at::Tensor block_forward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& x_NH, BlockSaved* saved);

// Returns dx_NH and adds to `grads`. Consumes `saved`: each tensor is released after its last use. With float8 weights
// the gradients of inputs are float8 products too; those of weights are products in the compute dtype.
at::Tensor block_backward(
    const ModelConfig& config, const SequenceInfo& seq, const RopeAngles& rope, const BlockParams& params,
    const at::Tensor& dy_NH, BlockSaved saved, BlockParams& grads);

// The two functions that a pass over a model calls for each block. A simulated run replaces them with replays of
// recorded allocations.
struct BlockFunctions {
  std::function<at::Tensor(
      const ModelConfig&, const SequenceInfo&, const RopeAngles&, const BlockParams&, const at::Tensor&, BlockSaved*)>
      forward = block_forward;
  std::function<at::Tensor(
      const ModelConfig&, const SequenceInfo&, const RopeAngles&, const BlockParams&, const at::Tensor&, BlockSaved,
      BlockParams&)>
      backward = block_backward;
};

} // namespace distill::models
