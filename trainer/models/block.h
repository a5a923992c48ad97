#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"
#include "trainer/models/sequence.h"

// One decoder block as a pair of functions. N tokens, H hidden, A = (heads + 2 kv heads) * head_dim, D head_dim, F ffn.
namespace distill::models {

// Views of a unit's flat buffer. The same struct names the parameters' gradients (fp32, accumulated into).
struct BlockParams {
  at::Tensor attn_norm_H;
  at::Tensor qkv_AH;
  at::Tensor qkv_bias_A; // undefined without qkv_bias
  at::Tensor q_norm_D; // undefined without qk_norm
  at::Tensor k_norm_D;
  at::Tensor o_HQ; // Q = heads * head_dim
  at::Tensor mlp_norm_H;
  at::Tensor gate_up_2FH;
  at::Tensor down_HF;
};

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat);

// What the forward pass keeps for the backward pass, and nothing else: the single source for the memory plan, for
// offload and for recompute. Holds no weight and no view of a slot.
struct BlockKept;

} // namespace distill::models
