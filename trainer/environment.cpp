#include "trainer/environment.h"

#include <ATen/Context.h>

#include "trainer/metrics/device.h"

namespace distill::trainer {
namespace {

at::ScalarType resolve_dtype(const std::string& name, at::ScalarType otherwise) {
  if (name == "float32") {
    return at::kFloat;
  }
  return name == "bfloat16" ? at::kBFloat16 : otherwise;
}

} // namespace

absl::StatusOr<Environment> resolve_environment(const config::Config& config) {
  Environment environment;
  const int64_t gpus = metrics::cuda_device_count();
  if (config.train.device == "cuda" && gpus == 0) {
    return absl::FailedPreconditionError(
        "train.device: expected a visible CUDA device, found none; set train.device to cpu or auto, or check the driver "
        "and CUDA_VISIBLE_DEVICES");
  }
  if (config.train.device != "cpu" && gpus > 0) {
    environment.device = at::Device(at::kCUDA, 0);
  }
  const at::ScalarType device_dtype = environment.device.is_cuda() ? at::kBFloat16 : at::kFloat;
  const at::ScalarType run_dtype = resolve_dtype(config.train.dtype, device_dtype);
  environment.student_dtype = resolve_dtype(config.student.dtype, run_dtype);
  environment.teacher_dtype = resolve_dtype(config.teacher.dtype, run_dtype);
  return environment;
}

void configure_libtorch(const config::TrainSection& train) {
  at::manual_seed(static_cast<uint64_t>(train.seed));
  at::globalContext().setDeterministicAlgorithms(train.deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

} // namespace distill::trainer
