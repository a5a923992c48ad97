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
at::Tensor reference_block(const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH);

// Leaf copies that ask for a gradient.
at::Tensor leaf(const at::Tensor& value);
// Gradients of sum(output * direction) with respect to `inputs`.
std::vector<at::Tensor> reference_gradients(
    const at::Tensor& output, const at::Tensor& direction, const std::vector<at::Tensor>& inputs);

} // namespace distill::models
