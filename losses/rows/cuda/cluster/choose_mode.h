#pragma once

#include "losses/rows/cuda/cluster/plan.h"

namespace distill::losses {

// Whether all modes are compiled for the call's divergence: labels alone, JSD, forward or reverse KL.
bool is_usual(const RowArgs& args);

// Whether its rows may start at any multiple of an element, and not only of 4 bytes.
bool may_start_anywhere(const RowArgs& args);

// The mode of the cluster row kernel that is compiled for this kind of call.
cluster::Mode cluster_mode(const RowArgs& args);

} // namespace distill::losses
