#include "losses/meta_device.h"

#include <ATen/Functions.h>

#include <vector>

namespace distill::losses {

c10::DeviceType kernel_device(const at::Tensor& tensor, c10::DeviceType planned) {
  return tensor.is_meta() ? planned : tensor.device().type();
}

void assert_async(const at::Tensor& condition, const char* message) {
  if (!condition.is_meta()) {
    at::_assert_async(condition, message);
  }
}

at::Tensor count_true(const at::Tensor& mask_N, c10::DeviceType kernels) {
  if (mask_N.is_meta() && kernels == at::kCPU) {
    const at::TensorOptions int64 = mask_N.options().dtype(at::kLong);
    at::Tensor count = at::empty({}, int64);
    at::empty(mask_N.sizes(), int64); // the CPU's sum converts its input
    return count;
  }
  return mask_N.sum();
}

at::Tensor true_positions(const at::Tensor& mask_N, int64_t count, c10::DeviceType kernels) {
  if (mask_N.is_meta()) {
    const at::TensorOptions int64 = mask_N.options().dtype(at::kLong);
    at::Tensor positions = at::empty({count}, int64);
    if (kernels == at::kCPU) {
      at::empty({count}, int64); // the CPU's nonzero_static has a buffer of the result's size
    }
    return positions;
  }
  return at::nonzero_static(mask_N, count, /*fill_value=*/0).squeeze(1);
}

at::Tensor gather_rows(const at::Tensor& source, const at::Tensor& index_R) {
  if (source.is_meta()) {
    std::vector<int64_t> sizes = source.sizes().vec();
    sizes[0] = index_R.size(0);
    return at::empty(sizes, source.options());
  }
  return source.index_select(0, index_R);
}

void gather_rows_out(at::Tensor out, const at::Tensor& source, const at::Tensor& index_R) {
  if (!source.is_meta()) {
    at::index_select_out(out, source, 0, index_R);
  }
}

} // namespace distill::losses
