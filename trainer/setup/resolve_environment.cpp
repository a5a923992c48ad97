#include "trainer/setup/resolve_environment.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trainer/config/dtypes.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"
#include "trainer/models/ops/blas_lt.h"

namespace distill::trainer {

Environment environment_on(const config::Config& config, at::Device device) {
  Environment environment;
  environment.device = device;
  const at::ScalarType run_dtype =
      config::scalar_type(config.train.dtype, device.is_cuda() ? at::kBFloat16 : at::kFloat);
  environment.student_dtype = config::scalar_type(config.student.dtype, run_dtype);
  environment.teacher_dtype = config::scalar_type(config.teacher.dtype, run_dtype);
  return environment;
}

absl::StatusOr<Environment> resolve_environment(const config::Config& config, int64_t local_gpu) {
  const int64_t gpus = device::cuda_device_count();
  if (config.train.device == config::DeviceChoice::kCuda && gpus == 0) {
    return absl::FailedPreconditionError(
        "train.device: expected a visible CUDA device, found none; set train.device to cpu or auto, or check the driver "
        "and CUDA_VISIBLE_DEVICES");
  }
  if (config.train.device != config::DeviceChoice::kCpu && gpus > 0) {
    if (local_gpu >= gpus) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "local rank %d has no GPU: %d are visible on this host; start at most one rank for each GPU", local_gpu,
          gpus));
    }
    const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(local_gpu));
    for (const auto& [name, dtype] : {std::pair("teacher", config.teacher.dtype), {"student", config.student.dtype}}) {
      if (dtype == config::ComputeDtype::kFloat8 && !device::computes_float8(gpu)) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "%s.dtype: float8: expected a GPU of compute capability 8.9 or newer, found %s, which has no float8 "
            "products; set %s.dtype to bfloat16",
            name, device::device_info(gpu).name, name));
      }
      if (dtype == config::ComputeDtype::kFloat8 && !models::blas_lt_scales_rows(gpu) &&
          config::scalar_type(config.train.dtype, at::kBFloat16) == at::kFloat) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "train.dtype: expected bfloat16 with %s.dtype: float8 on %s, whose float8 products have no float32 results, "
            "found float32",
            name, device::device_info(gpu).name));
      }
    }
    return environment_on(config, gpu);
  }
  return environment_on(config, at::kCPU);
}

void configure_libtorch(const config::TrainSection& train, at::Device device) {
  if (!device.is_cpu()) {
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  }
  at::manual_seed(static_cast<uint64_t>(train.seed));
  at::globalContext().setDeterministicAlgorithms(train.deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

} // namespace distill::trainer
