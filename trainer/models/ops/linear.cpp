#include "trainer/models/ops/linear.h"

#include "losses/matmul.h"

namespace distill::models {

at::Tensor linear_forward(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O) {
  return bias_O.defined() ? at::addmm(bias_O, x_NI, weight_OI.t()) : losses::matrix_product(x_NI, weight_OI.t());
}

at::Tensor linear_residual_forward(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& residual_NO) {
  return losses::matrix_product(x_NI, weight_OI.t(), residual_NO);
}

at::Tensor linear_backward_input(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  return losses::matrix_product(dy_NO, weight_OI);
}

void linear_backward_weight(const at::Tensor& dy_NO, const at::Tensor& x_NI, at::Tensor& grad_OI, bool accumulate) {
  if (!grad_OI.defined()) {
    return;
  }
  const bool converts = !x_NI.is_cuda() && grad_OI.scalar_type() != x_NI.scalar_type();
  const auto type = converts ? grad_OI.scalar_type() : x_NI.scalar_type();
  losses::matrix_product_out(grad_OI, dy_NO.to(type).t(), x_NI.to(type), 1, accumulate ? grad_OI : at::Tensor());
}

void linear_backward_bias(const at::Tensor& dy_NO, at::Tensor& grad_O) {
  if (grad_O.defined()) {
    grad_O.add_(at::sum(dy_NO, {0}, /*keepdim=*/false, grad_O.scalar_type()));
  }
}

} // namespace distill::models
