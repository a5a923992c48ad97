#include "losses/rows/capture_dispatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "losses/rows/cpu/capture_kernel.h"
#include "losses/rows/cuda/capture/launch.h"
#include "losses/rows/dispatch.h"

namespace distill::losses {

namespace {

CaptureRowArgs capture_args(const at::Tensor& logits_RV, const at::Tensor& ids_RK) {
  CaptureRowArgs args;
  args.logits = logits_RV.const_data_ptr();
  args.logits_type = element_type(logits_RV.scalar_type());
  args.num_rows = logits_RV.size(0);
  args.vocab = logits_RV.size(1);
  args.logits_stride = logits_RV.stride(0);
  args.ids = ids_RK.data_ptr<int32_t>();
  args.ids_stride = ids_RK.stride(0);
  args.entries = ids_RK.size(1);
  return args;
}

void run(const CaptureRowArgs& args, CaptureStage stage, c10::Device device) {
  if (device.is_cpu()) {
    capture_rows_cpu(args, stage);
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  const char* problem = launch_capture_rows(args, stage, guard.getStreamNativeHandle(guard.getStream(device)));
  TORCH_CHECK(problem == nullptr, "capture kernel: ", problem);
}

} // namespace

void run_topk(const at::Tensor& logits_RV, at::Tensor ids_RK) {
  if (!logits_RV.is_meta()) {
    run(capture_args(logits_RV, ids_RK), CaptureStage::kTopK, logits_RV.device());
  }
}

void run_samples(
    const at::Tensor& logits_RV, const at::Tensor& keys_R, double temperature, const SampleOptions& options,
    at::Tensor ids_RS, at::Tensor weights_RS) {
  if (logits_RV.is_meta()) {
    return;
  }
  CaptureRowArgs args = capture_args(logits_RV, ids_RS);
  args.keys = keys_R.const_data_ptr<int64_t>();
  args.weights = weights_RS.data_ptr<float>();
  args.weights_stride = weights_RS.stride(0);
  args.seed = options.seed;
  args.temperature = temperature;
  args.exponent = options.exponent;
  run(args, CaptureStage::kSamples, logits_RV.device());
}

} // namespace distill::losses
