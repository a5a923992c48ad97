// A cluster row kernel for every GPU architecture that a release has. The other files may be compiled for one of them
// alone, which may have instructions that the others lack; nothing calls this kernel.
#include "losses/rows/cuda/cluster/kernel.cuh"

namespace distill::losses {

const void* kernel_for_release_architectures() {
  using namespace cluster;
  return reinterpret_cast<const void*>(&rows_cluster<kMinTiles, float, Divergence::kJsd, true, Mode::kUnitLoss>);
}

} // namespace distill::losses
