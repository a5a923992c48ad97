#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "trainer/models/layer_kind.h"
#include "trainer/models/ops/routing.h"
#include "trainer/models/projection.h"
#include "trainer/models/router_balance.h"

// The MLP sublayer as a pair of functions. N tokens, H hidden, F ffn. With experts, moe_layer.h computes it: E experts,
// M visits of tokens to experts in place of N, and the experts' weights one below the other; L the shared expert's ffn.
namespace distill::models {

struct MlpParams {
  Projection router; // [E, H]; without experts its weight is undefined
  Projection gate_up; // [2F, H]: gate, then up; of experts [E * 2F, H]
  Projection down; // [H, F]; of experts [E * H, F]
  Projection shared_gate; // [1, H]; of a shared expert, as the two below
  Projection shared_gate_up; // [2L, H]
  Projection shared_down; // [H, L]

  std::vector<std::pair<std::string, Projection*>> projections(); // in the order of the layout, with their names there
};

struct MlpSaved {
  at::Tensor gate_up_N2F;
  Routing routing; // undefined tensors without experts
  at::Tensor shared_gate_N1; // fp32: before the sigmoid; with a shared expert only
  at::Tensor shared_gate_up_N2L;

  // Lists the tensors in the order of BlockSaved::all().
  std::vector<at::Tensor*> all();
};

// The kind of a layer with which its MLP computes.
struct MlpContext {
  const MlpSpec& spec;
  const RouterBalance* balance = nullptr; // of a micro-batch that is trained on, with experts; null: none
  int64_t first_token = 0; // of the micro-batch, in the input
};

// Runs the forward pass up to the last matrix product. Fills `saved` and input.rstd_N.
void mlp_layer_rebuild(const MlpContext& context, const MlpParams& params, SublayerInput& input, MlpSaved& saved);

// Returns the last matrix product [N, H]. A defined `residual_NH` is added to it.
at::Tensor mlp_layer_output(
    const MlpContext& context, const MlpParams& params, const MlpSaved& saved, const at::Tensor& residual_NH = {});

// Returns the gradient of input.x; arguments as for attention_layer_backward. Gate and up become their own gradient, so
// that the widest tensors of a block exist once.
at::Tensor mlp_layer_backward(
    const MlpContext& context, const MlpParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, MlpSaved& saved, MlpParams& grads, at::Tensor& dnorm_H);

} // namespace distill::models
