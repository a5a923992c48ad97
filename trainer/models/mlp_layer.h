#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/layer_kind.h"
#include "trainer/models/projection.h"

// The MLP sublayer as a pair of functions. N tokens, H hidden, F ffn.
namespace distill::models {

struct MlpParams {
  Projection gate_up; // [2F, H]: gate, then up
  Projection down; // [H, F]
};

struct MlpSaved {
  at::Tensor gate_up_N2F;

  // Lists the tensors in the order of BlockSaved::all().
  std::vector<at::Tensor*> all();
};

// Runs the forward pass up to the last matrix product. Fills `saved` and input.rstd_N.
void mlp_layer_rebuild(const MlpParams& params, SublayerInput& input, MlpSaved& saved);

// Returns the last matrix product [N, H]. A defined `residual_NH` is added to it; `in_place`: the sum is written into
// the residual, which is returned.
at::Tensor mlp_layer_output(
    const MlpSpec& spec, const MlpParams& params, const MlpSaved& saved, const at::Tensor& residual_NH = {},
    bool in_place = false);

// Returns the gradient of input.x; arguments as for attention_layer_backward. Gate and up become their own gradient, so
// that the widest tensors of a block exist once.
at::Tensor mlp_layer_backward(
    const MlpSpec& spec, const MlpParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, MlpSaved& saved, MlpParams& grads, at::Tensor& dnorm_H);

} // namespace distill::models
