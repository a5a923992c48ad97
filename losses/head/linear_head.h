#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include "losses/head/chunk_policy.h"
#include "losses/head/inputs.h"
#include "losses/options.h"
#include "losses/token_metrics.h"

// The fused linear loss head turns hidden states and lm_head weights into per-token losses and gradients. The logits of
// only one chunk of tokens exist at a time.
// Shapes: N tokens, V vocabulary rows, H student hidden size, G teacher hidden size.
namespace distill::losses {

struct LinearHeadOutput {
  at::Tensor metrics_MN; // fp32 [kNumTokenMetrics, N] (fp64 for fp64 inputs), see TokenMetric
};

// Runs the head. Without `grads` no gradients are computed. `arena`: scratch, a uint8 tensor of at least
// linear_head_plan(...)->arena_bytes on the same device; where it is undefined, the call allocates it.
// Never synchronises with the host. Throws c10::Error for inputs that contradict each other and for a cap too small.
// On meta tensors the call makes the allocations of a run on inputs.meta_device, and launches no kernels.
LinearHeadOutput linear_head(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, LinearHeadGrads* grads,
    const at::Tensor& arena = {});

// Returns the chunk sizes and the scratch that linear_head will use for these inputs, which may be meta tensors.
// Returns InvalidArgument where the options are out of range or memory_cap_mb is too small for one token.
absl::StatusOr<ChunkPlan> linear_head_plan(
    const LinearHeadInputs& inputs, const LossOptions& options, const ChunkOptions& chunks, bool needs_grad);

} // namespace distill::losses
