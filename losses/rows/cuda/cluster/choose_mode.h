#pragma once

#include "losses/rows/cuda/cluster/plan.h"

namespace distill::losses {

// The mode of the cluster row kernel that is compiled for this kind of call.
cluster::Mode cluster_mode(const RowArgs& args);

} // namespace distill::losses
