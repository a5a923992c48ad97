#include "losses/rows/cuda/capture/launch.h"

#include "losses/rows/cuda/capture/kernels.h"

namespace distill::losses {

const char* launch_capture_rows(const CaptureRowArgs& args, CaptureStage stage, void* stream) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  if (args.num_rows > INT32_MAX || args.vocab > INT32_MAX / 2) {
    return "more than 2^31 rows or 2^30 columns";
  }
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  return stage == CaptureStage::kTopK ? launch_topk(args, cuda_stream) : launch_samples(args, cuda_stream);
}

} // namespace distill::losses
