#include "trainer/setup/resolve_environment.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "data/base/status_macros.h"
#include "trainer/config/dtypes.h"
#include "trainer/config/teachers.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"
#include "trainer/models/ops/blas_lt.h"

namespace distill::trainer {

Environment environment_on(const config::Config& config, at::Device device) {
  Environment environment;
  environment.device = device;
  const at::ScalarType run_dtype =
      config::scalar_type(config.train.dtype, device.is_cuda() ? at::kBFloat16 : at::kFloat);
  environment.run_dtype = run_dtype;
  environment.student_dtype = config::scalar_type(config.student.dtype, run_dtype);
  environment.teacher_dtype = config::scalar_type(config.teacher.dtype, run_dtype);
  environment.allocator = device::allocator_settings(config.memory.allocator);
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
    RETURN_IF_ERROR(config::check_float8_products(config, device::computes_float8(gpu), device::device_info(gpu).name));
    for (const auto& [name, model] : config::models_of_run(config)) {
      if (model.dtype == config::ComputeDtype::kFloat8 && !models::blas_lt_scales_rows(gpu) &&
          config::scalar_type(config.train.dtype, at::kBFloat16) == at::kFloat) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "train.dtype: expected bfloat16 with %s.dtype: float8 on %s, whose float8 products have no float32 results, "
            "found float32",
            name, device::device_info(gpu).name));
      }
    }
    if (config.float8.weight_gradients && config.student.dtype == config::ComputeDtype::kFloat8 &&
        !models::blas_lt_scales_rows(gpu)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "float8.weight_gradients: expected a GPU of compute capability 9.0, found ", device::device_info(gpu).name,
          ", whose float8 products have no float32 results that are added to a gradient; remove the key"));
    }
    return environment_on(config, gpu);
  }
  return environment_on(config, at::kCPU);
}

void configure_libtorch(const config::TrainSection& train, Environment& environment) {
  if (const at::Device device = environment.device; !device.is_cpu()) {
    device::bytes_of_other_processes(device); // later it would count this process, too
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    environment.allocator = device::use_allocator(device, std::move(environment.allocator));
  }
  at::manual_seed(static_cast<uint64_t>(train.seed));
  at::globalContext().setDeterministicAlgorithms(train.deterministic, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

} // namespace distill::trainer
