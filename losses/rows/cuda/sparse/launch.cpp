#include "losses/rows/cuda/sparse/launch.h"

#include "losses/rows/cuda/launch_limits.h"
#include "losses/rows/cuda/sparse/kernels.h"

namespace distill::losses {

const char* launch_sparse_rows(const SparseRowArgs& args, SparseStage stage, void* stream) {
  if (args.rows.num_rows == 0) {
    return nullptr;
  }
  if (const char* problem = beyond_limits(args.rows.num_rows, args.rows.vocab); problem != nullptr) {
    return problem;
  }
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  switch (stage) {
    case SparseStage::kTake:
      return launch_take_entries(args, cuda_stream);
    case SparseStage::kLoss:
      return launch_sparse_loss(args, cuda_stream);
    case SparseStage::kLogProbs:
      return launch_log_probs(args, cuda_stream);
  }
  return "unknown stage";
}

} // namespace distill::losses
