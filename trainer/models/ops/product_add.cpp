#include "trainer/models/ops/product_add.h"

#include "trainer/device/simulation.h"
#include "trainer/models/ops/blas_lt.h"

namespace distill::models {
namespace {

void check_sizes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& residual, const at::Tensor& out) {
  TORCH_CHECK(
      x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && residual.dim() == 2 &&
          residual.size(0) == x.size(0) && residual.size(1) == weight.size(0) && out.sizes() == residual.sizes() &&
          out.scalar_type() == residual.scalar_type() && residual.is_contiguous() && out.is_contiguous() &&
          !out.is_same(residual),
      "product_add: x ", x.sizes(), ", weight ", weight.sizes(), ", residual ", residual.sizes(), " and result ",
      out.sizes(), " do not fit together, or are one tensor");
}

bool by_blas_lt(const at::Tensor& x, const at::Tensor& residual) {
  return device::runs_on_cuda(x) && x.size(0) > 0 && residual.element_size() == 2;
}

} // namespace

void product_add_out(
    const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& residual_NO, at::Tensor& out_NO) {
  check_sizes(x_NI, weight_OI, residual_NO, out_NO);
  if (!by_blas_lt(x_NI, residual_NO)) {
    at::addmm_out(out_NO, residual_NO, x_NI, weight_OI.t());
  } else if (!x_NI.is_meta()) {
    blas_lt_product_add({x_NI.contiguous(), {}}, {weight_OI, {}}, residual_NO, out_NO);
  }
}

void product_add_out(
    const Float8Rows& x_NI, const Float8Rows& weight_OI, const at::Tensor& residual_NO, at::Tensor& out_NO) {
  check_sizes(x_NI.values_RC, weight_OI.values_RC, residual_NO, out_NO);
  if (!by_blas_lt(x_NI.values_RC, residual_NO)) {
    out_NO.copy_(float8_linear(x_NI, weight_OI, at::kFloat).add_(residual_NO));
  } else if (x_NI.values_RC.is_meta()) {
    return;
  } else if (!blas_lt_scales_rows(x_NI.values_RC.device())) {
    at::add_out(out_NO, float8_linear(x_NI, weight_OI, out_NO.scalar_type()), residual_NO);
  } else {
    blas_lt_product_add({x_NI.values_RC, x_NI.scale_R}, {weight_OI.values_RC, weight_OI.scale_R}, residual_NO, out_NO);
  }
}

} // namespace distill::models
