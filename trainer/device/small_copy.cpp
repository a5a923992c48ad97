#include "trainer/device/small_copy.h"

#include "trainer/device/device_hooks.h"

namespace distill::device {

void copy_small(at::Tensor to, const at::Tensor& from) {
  constexpr size_t kMost = size_t{1} << 20; // bytes
  TORCH_CHECK(
      to.is_contiguous() && from.is_contiguous() && to.scalar_type() == from.scalar_type() &&
          to.numel() == from.numel(),
      "copy_small: expected contiguous tensors of one dtype and size, found ", from.scalar_type(), " ", from.sizes(),
      " and ", to.scalar_type(), " ", to.sizes());
  const bool pinned =
      (to.is_cuda() && from.is_cpu() && from.is_pinned()) || (from.is_cuda() && to.is_cpu() && to.is_pinned());
  if (pinned && from.nbytes() > 0 && from.nbytes() <= kMost) {
    copy_by_kernel(std::move(to), from);
  } else {
    to.copy_(from, /*non_blocking=*/true);
  }
}

} // namespace distill::device
