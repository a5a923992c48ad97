#include "trainer/models/ops/kernel_launch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace distill::models {

ElementType element_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ElementType::kFloat32;
    case at::kBFloat16:
      return ElementType::kBFloat16;
    case at::kHalf:
      return ElementType::kFloat16;
    case at::kDouble:
      return ElementType::kFloat64;
    default:
      TORCH_CHECK(false, "expected bf16, fp16, fp32 or fp64, found ", type);
  }
}

CUstream_st* current_stream(at::Device device) {
  // The device-generic interface makes this file the same in builds without CUDA.
  const c10::impl::VirtualGuardImpl guard(device.type());
  return static_cast<CUstream_st*>(guard.getStreamNativeHandle(guard.getStream(device)));
}

} // namespace distill::models
