#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "trainer/models/attention_layer.h"
#include "trainer/models/delta_layer.h"
#include "trainer/models/layer_kind.h"
#include "trainer/models/layout.h"
#include "trainer/models/mlp_layer.h"
#include "trainer/models/ops/rope.h"
#include "trainer/models/sequence.h"

// One decoder block as a pair of functions: norms, residuals, and the two sublayers. Dimensions as in
// attention_layer.h, delta_layer.h and mlp_layer.h. Where a kind has a delta rule, it stands in attention's place, and
// what is said of attention and its norms is said of it. Compute dtypes: bf16, fp16, fp32, fp64; statistics are fp32
// (fp64 for fp64).
namespace distill::models {

// Views of a unit's flat buffer. The same struct names the parameters' gradients (fp32, or fp64 for fp64; accumulated
// into). An undefined gradient is not computed.
struct BlockParams {
  at::Tensor attn_norm_H; // of attention's input; of its output, if that has the sublayer's only norm
  at::Tensor attn_out_norm_H; // of attention's output, if its input has a norm, too
  AttentionParams attention; // all undefined of a kind with a delta rule
  DeltaParams delta; // all undefined of one without
  at::Tensor mlp_norm_H; // in the same way
  at::Tensor mlp_out_norm_H;
  MlpParams mlp;
  at::Tensor output_scale; // [1], of a kind whose output is scaled; has no gradient

  // Of a block with adapters whose inputs some elements are left out of: which ones. `dropout`: of the block's first
  // product; the others take the streams after it.
  void set_dropout(Dropout dropout);
  // In the order of the block's layout, with their names there.
  std::vector<std::pair<std::string, Projection*>> projections();
  std::vector<std::pair<std::string, const Projection*>> projections() const;
};

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat);
// The same of parameters that `find` returns by name; undefined: the block has no such parameter.
BlockParams block_params(const std::function<at::Tensor(const std::string& name)>& find);
// Puts what is trained of a frozen block, block_params of a unit of trained_layouts(), beside or in the place of its
// frozen parameters.
void add_trained(BlockParams& frozen, const BlockParams& trained);

// The tensors that the forward pass saves for the backward pass. Recomputation, offload and the memory plan read them
// from this struct alone: a new tensor needs a member here or in a sublayer's struct, its name in all() there, and
// nothing in the plan. It holds no weight and no view of a slot. In bf16 a Llama-8B block saves 92 KiB per token: the
// two residual streams (16), q, k, v (12), attention output (8), gate and up (56), and fp32 statistics. The normalised
// inputs, the activation's product and, with q/k norms, q and k after norm and RoPE are recomputed in the backward
// pass, which takes elementwise work only and no matrix product. Where the MLP is computed in tiles
// (BlockContext::tile_tokens), nothing of it is saved: 36 KiB per token.
struct BlockSaved {
  at::Tensor x_NH; // block input; all that the recompute policy saves, or all but what attention computed
  at::Tensor attn_rstd_N; // with a norm of attention's input
  at::Tensor attn_out_rstd_N; // with a norm of its output
  AttentionSaved attention;
  DeltaSaved delta;
  at::Tensor mid_NH; // residual stream after attention
  at::Tensor mlp_rstd_N;
  at::Tensor mlp_out_rstd_N;
  MlpSaved mlp;
  at::Tensor attn_out_NH; // attention's output before its norm; with such a norm only
  at::Tensor mlp_out_NH; // the MLP's output before its norm; with such a norm only

  // Whether the forward pass has to run again, with attention or without it.
  bool input_only() const {
    return !mid_NH.defined();
  }
  // Whether attention's output is there.
  bool has_attention() const {
    return attention.out_NQ.defined() || delta.out_NV.defined();
  }
  // Every tensor in a fixed order, undefined ones included.
  std::vector<at::Tensor*> all();
  // The defined tensors, in the same order.
  std::vector<at::Tensor*> tensors();
  int64_t bytes() const;
};

// Saves the input alone: block_backward then runs the forward pass again first.
BlockSaved save_input_only(const at::Tensor& x_NH);
// Saves the input and attention's output: the forward pass that runs again leaves attention out. `all`: of
// block_forward.
BlockSaved save_input_and_attention(BlockSaved all);

// What a block computes with that its weights are not: its kind, the micro-batch's sequences, the angles of every rope
// of the model.
struct BlockContext {
  const LayerKind& kind;
  const SequenceInfo& seq;
  const std::vector<RopeAngles>& ropes;
  RouterBalance* balance = nullptr; // of a micro-batch that is trained on: block_forward tells it what the router did
  // Of more tokens than this, the MLP with its norms is computed in tiles of so many, one after the other: its widest
  // tensors exist for one tile at a time, in the backward pass too, which computes each tile again. 0: never.
  int64_t tile_tokens = 0;
};

// Returns y_NH. A null `saved` means that no backward pass follows and nothing is saved.
at::Tensor block_forward(
    const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH, BlockSaved* saved);

// Returns dx_NH and adds to `grads`. Consumes `saved`: each tensor is released after its last use. With float8 weights
// the gradients of inputs are float8 products too; those of weights are where Projection::float8_weight_gradient says
// so, and else products in the compute dtype. In tiles, dy_NH is overwritten: by the gradient of the stream between the
// sublayers.
at::Tensor block_backward(
    const BlockContext& context, const BlockParams& params, const at::Tensor& dy_NH, BlockSaved saved,
    BlockParams& grads);

// The two functions that a pass over a model calls for each block. A simulated run replaces them with replays of
// recorded allocations.
struct BlockFunctions {
  std::function<at::Tensor(const BlockContext&, const BlockParams&, const at::Tensor&, BlockSaved*)> forward =
      block_forward;
  std::function<at::Tensor(const BlockContext&, const BlockParams&, const at::Tensor&, BlockSaved, BlockParams&)>
      backward = block_backward;
  int64_t tile_tokens = 0; // of every BlockContext that a pass makes
  bool recomputes_attention = true; // false: blocks that run again in the backward pass save_input_and_attention()
};

} // namespace distill::models
