#include "losses/rows/dispatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "losses/rows/cpu/row_kernel.h"

namespace distill::losses {

ElementType element_type(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return ElementType::kFloat32;
    case c10::ScalarType::BFloat16:
      return ElementType::kBFloat16;
    case c10::ScalarType::Double:
      return ElementType::kFloat64;
    default:
      TORCH_CHECK(false, "expected fp32, bf16 or fp64, found ", type);
  }
}

void run_rows(const RowArgs& args, c10::Device device, const RowLaunch& launch) {
  if (device.is_cpu()) {
    rows_cpu(args);
    return;
  }
  // Through the device-generic interface, so that this file is the same in builds without CUDA.
  const c10::impl::VirtualGuardImpl guard(device.type());
  const char* problem = launch_rows(args, guard.getStreamNativeHandle(guard.getStream(device)), launch);
  TORCH_CHECK(problem == nullptr, "row kernel: ", problem);
}

} // namespace distill::losses
