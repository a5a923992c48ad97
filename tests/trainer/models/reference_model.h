#pragma once

#include "trainer/models/block.h"

// The decoder in plain ATen, differentiated by autograd: written independently of trainer/models/ops.
namespace distill::models {

at::Tensor reference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, double offset = 0);
// Rotates the first elements of each head, as many as the angles are for.
at::Tensor reference_rope(const at::Tensor& x_NAD, const at::Tensor& cos_NR, const at::Tensor& sin_NR);
at::Tensor reference_attention(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const std::vector<int64_t>& boundaries,
    const AttentionOptions& options);
at::Tensor reference_glu(const at::Tensor& gate_up_N2F, Activation activation);
// The MLP, or the experts, each of which is computed for all tokens.
at::Tensor reference_mlp(const MlpSpec& spec, const MlpParams& params, const at::Tensor& x_NH);
// The convolution of ops/short_conv.h with SiLU, document by document.
at::Tensor reference_short_conv(
    const at::Tensor& x_NC, const at::Tensor& weight_C1W, const std::vector<int64_t>& boundaries);
// The rule of ops/delta_rule.h, token by token. q, k [N, A, Dk], not normalised; v [N, A, Dv]; decay, beta [N, A].
at::Tensor reference_delta_rule(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& decay, const at::Tensor& beta,
    const std::vector<int64_t>& boundaries);
// The sublayer of a delta rule but for the norm of its input, document by document.
at::Tensor reference_delta(
    const DeltaSpec& spec, const DeltaParams& params, double eps, const std::vector<int64_t>& boundaries,
    const at::Tensor& x_NH);
at::Tensor reference_block(const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH);

// Leaf copies that ask for a gradient.
at::Tensor leaf(const at::Tensor& value);
// Gradients of sum(output * direction) with respect to `inputs`.
std::vector<at::Tensor> reference_gradients(
    const at::Tensor& output, const at::Tensor& direction, const std::vector<at::Tensor>& inputs);

} // namespace distill::models
