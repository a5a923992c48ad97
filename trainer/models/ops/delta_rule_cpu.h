#pragma once

#include "trainer/models/ops/delta_rule.h"

// The gated delta rule on the CPU (delta_rule.h). Results are allocated, and written.
namespace distill::models {

void delta_rule_forward_cpu(
    const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq,
    DeltaResult& result);

void delta_rule_backward_cpu(
    const DeltaSpec& spec, const at::Tensor& dout_NV, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const at::Tensor& written_NV, const SequenceInfo& seq, DeltaGradients& gradients);

} // namespace distill::models
