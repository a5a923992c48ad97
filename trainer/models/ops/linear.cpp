#include "trainer/models/ops/linear.h"

#include "trainer/device/simulation.h"

namespace distill::models {

at::Tensor linear_forward(const at::Tensor& x_NI, const at::Tensor& weight_OI, const at::Tensor& bias_O) {
  return bias_O.defined() ? at::addmm(bias_O, x_NI, weight_OI.t()) : at::mm(x_NI, weight_OI.t());
}

at::Tensor linear_forward_fp32(const at::Tensor& x_NI, const at::Tensor& weight_OI) {
  if (x_NI.scalar_type() == at::kFloat || x_NI.scalar_type() == at::kDouble) {
    return at::mm(x_NI, weight_OI.t());
  }
  if (!device::runs_on_cuda(x_NI)) {
    return at::mm(x_NI.to(at::kFloat), weight_OI.to(at::kFloat).t());
  }
  at::Tensor y_NO = at::empty({x_NI.size(0), weight_OI.size(0)}, x_NI.options().dtype(at::kFloat));
  at::addmm_out(y_NO, y_NO, x_NI, weight_OI.t(), at::kFloat, /*beta=*/0);
  return y_NO;
}

at::Tensor linear_backward_input(const at::Tensor& dy_NO, const at::Tensor& weight_OI) {
  return at::mm(dy_NO, weight_OI);
}

void linear_backward_weight(const at::Tensor& dy_NO, const at::Tensor& x_NI, at::Tensor& grad_OI, bool accumulate) {
  if (!grad_OI.defined()) {
    return;
  }
  const double beta = accumulate ? 1 : 0;
  if (grad_OI.scalar_type() == x_NI.scalar_type()) {
    grad_OI.addmm_(dy_NO.t(), x_NI, beta);
  } else if (device::runs_on_cuda(x_NI)) {
    at::addmm_out(grad_OI, grad_OI, dy_NO.t(), x_NI, grad_OI.scalar_type(), beta);
  } else {
    grad_OI.addmm_(dy_NO.to(grad_OI.scalar_type()).t(), x_NI.to(grad_OI.scalar_type()), beta);
  }
}

void linear_backward_bias(const at::Tensor& dy_NO, at::Tensor& grad_O) {
  if (grad_O.defined()) {
    grad_O.add_(at::sum(dy_NO, {0}, /*keepdim=*/false, grad_O.scalar_type()));
  }
}

} // namespace distill::models
