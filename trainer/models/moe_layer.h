#pragma once

#include "trainer/models/mlp_layer.h"

// The MLP sublayer with experts: a router chooses some of them for each token. The functions are those of mlp_layer.h,
// which calls them. Letters as there.
//
// The router's logits and probabilities are fp32 (fp64 for fp64), from operands in the compute dtype. Tokens are sorted
// by the experts that they visit, and the experts' products are grouped (ops/grouped_linear.h). A visit's weight
// multiplies the gated product, before the last matrix product: that has fewer elements than its result, and the
// weight's gradient is then a product with what is computed again anyway. So does the gate of a shared expert, whose
// logits are fp32, too. No order of additions depends on timing:
// results are equal bit for bit in every run.
namespace distill::models {

void moe_layer_rebuild(const MlpContext& context, const MlpParams& params, SublayerInput& input, MlpSaved& saved);

at::Tensor moe_layer_output(
    const MlpContext& context, const MlpParams& params, const MlpSaved& saved, const at::Tensor& residual_NH);

at::Tensor moe_layer_backward(
    const MlpContext& context, const MlpParams& params, at::Tensor dy_NH, const at::Tensor& dstream_NH,
    const SublayerInput& input, MlpSaved& saved, MlpParams& grads, at::Tensor& dnorm_H);

} // namespace distill::models
