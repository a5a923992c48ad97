#include "losses/rows/cuda/capture/launch.h"

#include "losses/rows/cuda/capture/kernels.h"
#include "losses/rows/cuda/launch_limits.h"

namespace distill::losses {

const char* launch_capture_rows(const CaptureRowArgs& args, CaptureStage stage, void* stream) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  if (const char* problem = beyond_limits(args.num_rows, args.vocab); problem != nullptr) {
    return problem;
  }
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  return stage == CaptureStage::kTopK ? launch_topk(args, cuda_stream) : launch_samples(args, cuda_stream);
}

} // namespace distill::losses
