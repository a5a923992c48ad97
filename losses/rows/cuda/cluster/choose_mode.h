#pragma once

#include "losses/rows/cuda/cluster/plan.h"

namespace distill::losses {

// Whether all modes are compiled for the call's divergence: labels alone, JSD, forward or reverse KL.
bool is_usual(const RowArgs& args);

// Whether the cluster row kernel is compiled for the call: for fp32 logits, and for bf16 ones but in the general mode,
// in which the streaming kernel is faster (docs/loss_head.md). Of bf16 logits rows may start at any element.
bool has_cluster_kernel(const RowArgs& args);

// The mode of the cluster row kernel that is compiled for this kind of call.
cluster::Mode cluster_mode(const RowArgs& args);

} // namespace distill::losses
