#pragma once

#include "losses/rows/cuda/cluster/plan.h"

namespace distill::losses {

// Returns whether all modes are compiled for the call's divergence: labels alone, JSD, forward or reverse KL.
bool is_usual(const RowArgs& args);

// Returns whether the cluster row kernel is compiled for the call: for fp32 logits, and for bf16 ones, at any
// alignment, but not in the general mode, in which the streaming kernel is faster (docs/loss_head.md).
bool has_cluster_kernel(const RowArgs& args);

// Returns the mode of the cluster row kernel that is compiled for this kind of call.
cluster::Mode cluster_mode(const RowArgs& args);

} // namespace distill::losses
