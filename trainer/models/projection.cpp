#include "trainer/models/projection.h"

#include "trainer/models/ops/glu.h"
#include "trainer/models/ops/grouped_linear.h"
#include "trainer/models/ops/linear.h"
#include "trainer/models/ops/product_add.h"
#include "trainer/models/ops/rms_norm.h"

namespace distill::models {
namespace {

const at::Tensor& activation_counts(const Projection& projection) {
  return counts_of(projection.float8_counts, Float8Operand::kActivations);
}

Float8Rows float8_weight(const Projection& projection) {
  return {projection.weight_OI, projection.scale_O};
}

void check_gradient(const Projection& projection, const Projection& gradient) {
  TORCH_CHECK(
      !gradient.weight_OI.defined() || gradient.weight_OI.sizes() == projection.weight_OI.sizes(),
      "the gradient of a weight has its shape: expected ", projection.weight_OI.sizes(), ", found ",
      gradient.weight_OI.sizes());
}

} // namespace

at::Tensor SublayerInput::value() const {
  return norm_H.defined() ? rms_norm_apply(x_NH, rstd_N, norm_H, offset) : x_NH;
}

at::Tensor SublayerInput::gradient(at::Tensor dinput_NH, const at::Tensor& dstream_NH, at::Tensor& dnorm_H) const {
  return norm_H.defined() ? rms_norm_backward(dinput_NH, x_NH, rstd_N, norm_H, dnorm_H, dstream_NH, offset)
                          : dinput_NH.add_(dstream_NH);
}

Operand operand_of(const Projection& projection, const at::Tensor& x_NI) {
  if (projection.is_float8()) {
    return {{}, float8_rows(x_NI, {.counts = activation_counts(projection)}), x_NI.scalar_type()};
  }
  return {x_NI, {}, x_NI.scalar_type()};
}

Operand operand_of(const Projection& projection, SublayerInput& input) {
  if (!input.norm_H.defined()) {
    return operand_of(projection, input.x_NH);
  }
  const bool adds = input.residual_NH.defined();
  const at::ScalarType dtype = input.x_NH.scalar_type();
  if (projection.is_float8()) {
    Float8RmsNormResult norm = adds
        ? add_rms_norm_forward_float8_(input.x_NH, input.residual_NH, input.norm_H, input.eps, input.offset)
        : rms_norm_forward_float8(input.x_NH, input.norm_H, input.eps, input.offset);
    input.rstd_N = std::move(norm.rstd_N);
    return {{}, std::move(norm.y_NH), dtype};
  }
  RmsNormResult norm = adds
      ? add_rms_norm_forward_(input.x_NH, input.residual_NH, input.norm_H, input.eps, input.offset)
      : rms_norm_forward(input.x_NH, input.norm_H, input.eps, input.offset);
  input.rstd_N = std::move(norm.rstd_N);
  return {std::move(norm.y_NH), {}, dtype};
}

Operand operand_of_glu(const Projection& projection, const at::Tensor& gate_up_N2I, Activation activation) {
  const at::ScalarType dtype = gate_up_N2I.scalar_type();
  if (projection.is_float8()) {
    return {{}, glu_forward_float8(gate_up_N2I, activation, activation_counts(projection)), dtype};
  }
  return {glu_forward(gate_up_N2I, activation), {}, dtype};
}

at::Tensor multiply(const Projection& projection, const Operand& operand) {
  return projection.is_float8()
      ? float8_linear(operand.float8, float8_weight(projection), operand.dtype, projection.bias_O)
      : linear_forward(operand.values_NI, projection.weight_OI, projection.bias_O);
}

at::Tensor multiply_add(
    const Projection& projection, const Operand& operand, const at::Tensor& residual_NO, bool in_place) {
  TORCH_CHECK(!projection.bias_O.defined(), "a projection with a bias is not added to a residual");
  // In place, too, it is product_add: another algorithm would give a block that runs again other bits than one that
  // keeps everything.
  at::Tensor y_NO = in_place ? residual_NO : at::empty_like(residual_NO);
  if (projection.is_float8()) {
    product_add_out(operand.float8, float8_weight(projection), residual_NO, y_NO);
  } else {
    product_add_out(operand.values_NI, projection.weight_OI, residual_NO, y_NO);
  }
  return y_NO;
}

at::Tensor input_gradient(const Projection& projection, const at::Tensor& dy_NO) {
  return projection.is_float8()
      ? float8_linear_backward_input(
            dy_NO, float8_weight(projection), counts_of(projection.float8_counts, Float8Operand::kGradients))
      : linear_backward_input(dy_NO, projection.weight_OI);
}

void add_weight_gradient(
    const Projection& projection, Projection& gradient, const at::Tensor& dy_NO, const at::Tensor& x_NI) {
  check_gradient(projection, gradient);
  linear_backward_weight(dy_NO, x_NI, gradient.weight_OI, /*accumulate=*/!gradient.is_new);
}

void add_bias_gradient(Projection& gradient, const at::Tensor& dy_NO) {
  linear_backward_bias(dy_NO, gradient.bias_O);
}

Operand operand_of_rows(const Projection& projection, const at::Tensor& x_NI, const at::Tensor& rows_M) {
  Operand operand = operand_of(projection, x_NI);
  if (projection.is_float8()) { // a row is rounded once, however many groups multiply it
    Float8Rows& rows = operand.float8;
    rows.values_RC = rows.values_RC.view(at::kByte).index_select(0, rows_M).view(rows.values_RC.scalar_type());
    rows.scale_R = rows.scale_R.index_select(0, rows_M);
  } else {
    operand.values_NI = operand.values_NI.index_select(0, rows_M);
  }
  return operand;
}

at::Tensor multiply_groups(const Projection& projection, const Operand& operand, const at::Tensor& ends_G) {
  return projection.is_float8()
      ? grouped_float8_linear(operand.float8, float8_weight(projection), ends_G, operand.dtype)
      : grouped_linear_forward(operand.values_NI, projection.weight_OI, ends_G);
}

at::Tensor input_gradient_of_groups(const Projection& projection, const at::Tensor& dy_MO, const at::Tensor& ends_G) {
  TORCH_CHECK(!projection.is_float8(), "experts in float8 have no backward pass");
  return grouped_linear_backward_input(dy_MO, projection.weight_OI, ends_G);
}

void add_weight_gradient_of_groups(
    const Projection& projection, Projection& gradient, const at::Tensor& dy_MO, const at::Tensor& x_MI,
    const at::Tensor& ends_G) {
  check_gradient(projection, gradient);
  grouped_linear_backward_weight(dy_MO, x_MI, ends_G, gradient.weight_OI, /*accumulate=*/!gradient.is_new);
}

} // namespace distill::models
