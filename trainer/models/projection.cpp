#include "trainer/models/projection.h"

#include "trainer/models/ops/dropout.h"
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

void check_adapter_gradients(const Adapter& adapter, const Adapter& own) {
  TORCH_CHECK(
      own.a_RI.sizes() == adapter.a_RI.sizes() && own.modules.size() == adapter.modules.size(),
      "the gradients of adapters have their shapes: expected A ", adapter.a_RI.sizes(), " and ", adapter.modules.size(),
      " modules, found ", own.a_RI.sizes(), " and ", own.modules.size());
}

// The input of the adapters' products.
at::Tensor adapter_input(const Adapter& adapter, const at::Tensor& x_NI) {
  return adapter.dropout.probability > 0 ? dropout(x_NI, adapter.dropout) : x_NI;
}

// Calls body(module, first, rank) for each module; [first, first + rank) are its rows of A.
template <typename Body>
void for_modules(const Adapter& adapter, const Body& body) {
  int64_t first = 0;
  for (const Adapter::Module& module : adapter.modules) {
    const int64_t rank = module.b_OR.size(1);
    body(module, first, rank);
    first += rank;
  }
}

// y += scale * (x A^T) B^T in each module's rows.
void add_adapters(const Adapter& adapter, const at::Tensor& x_NI, at::Tensor& y_NO) {
  const at::Tensor low_NR = linear_forward(adapter_input(adapter, x_NI), adapter.a_RI);
  for_modules(adapter, [&](const Adapter::Module& module, int64_t first, int64_t rank) {
    y_NO.narrow(1, module.first_row, module.b_OR.size(0))
        .addmm_(low_NR.narrow(1, first, rank), module.b_OR.t(), /*beta=*/1, /*alpha=*/module.scale);
  });
}

// dy as both float8 products of the backward pass multiply it.
Float8Rows rounded_gradient(const Projection& projection, const at::Tensor& dy_NO, SharedGradient* shared) {
  if (shared != nullptr && shared->rounded_NO.values_RC.defined()) {
    return shared->rounded_NO;
  }
  Float8Rows rounded_NO = float8_rows(
      dy_NO,
      {.factor_C = projection.scale_O, .counts = counts_of(projection.float8_counts, Float8Operand::kGradients)});
  if (shared != nullptr && projection.float8_weight_gradient) {
    shared->rounded_NO = rounded_NO;
  }
  return rounded_NO;
}

// The gradient of x A^T: scale * dy B of each module.
at::Tensor low_gradient(const Adapter& adapter, const at::Tensor& dy_NO, SharedGradient* shared) {
  if (shared != nullptr && shared->dlow_NR.defined()) {
    return shared->dlow_NR;
  }
  at::Tensor dlow_NR = at::empty({dy_NO.size(0), adapter.a_RI.size(0)}, dy_NO.options());
  for_modules(adapter, [&](const Adapter::Module& module, int64_t first, int64_t rank) {
    dlow_NR.narrow(1, first, rank)
        .addmm_(
            dy_NO.narrow(1, module.first_row, module.b_OR.size(0)), module.b_OR, /*beta=*/0, /*alpha=*/module.scale);
  });
  if (shared != nullptr) {
    shared->dlow_NR = dlow_NR;
  }
  return dlow_NR;
}

void add_adapter_gradients(
    const Adapter& adapter, Projection& gradient, const at::Tensor& dy_NO, const at::Tensor& x_NI,
    SharedGradient* shared) {
  Adapter& own = gradient.adapter;
  check_adapter_gradients(adapter, own);
  const bool accumulate = !gradient.is_new;
  const at::Tensor input_NI = adapter_input(adapter, x_NI);
  const at::Tensor low_NR = linear_forward(input_NI, adapter.a_RI);
  for_modules(adapter, [&](const Adapter::Module& module, int64_t first, int64_t rank) {
    const auto index = static_cast<size_t>(&module - adapter.modules.data());
    linear_backward_weight(
        dy_NO.narrow(1, module.first_row, module.b_OR.size(0)), low_NR.narrow(1, first, rank).mul(module.scale),
        own.modules[index].b_OR, accumulate);
  });
  linear_backward_weight(low_gradient(adapter, dy_NO, shared), input_NI, own.a_RI, accumulate);
}

// The only module of groups' adapters.
const Adapter::Module& module_of_groups(const Adapter& adapter) {
  TORCH_CHECK(
      adapter.modules.size() == 1 && adapter.dropout.probability == 0,
      "adapters of groups are those of one module and leave nothing out, found ", adapter.modules.size(),
      " modules and dropout ", adapter.dropout.probability);
  return adapter.modules.front();
}

// The weights in `dtype`: of those in float8 a copy.
at::Tensor weights_of_groups(const Projection& projection, at::ScalarType dtype) {
  return projection.is_float8() ? projection.weight_OI.to(dtype).mul_(projection.scale_O.unsqueeze(1))
                                : projection.weight_OI;
}

// low_gradient() of groups.
at::Tensor low_gradient_of_groups(
    const Adapter& adapter, const at::Tensor& dy_MO, const at::Tensor& ends_G, SharedGradient* shared) {
  if (shared != nullptr && shared->dlow_NR.defined()) {
    return shared->dlow_NR;
  }
  const Adapter::Module& module = module_of_groups(adapter);
  const at::Tensor dlow_MR = grouped_linear_backward_input(dy_MO, module.b_OR, ends_G).mul_(module.scale);
  if (shared != nullptr) {
    shared->dlow_NR = dlow_MR;
  }
  return dlow_MR;
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
    return {
        projection.adapter.exists() ? x_NI : at::Tensor(), float8_rows(x_NI, {.counts = activation_counts(projection)}),
        x_NI.scalar_type()};
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
    return {projection.adapter.exists() ? input.value() : at::Tensor(), std::move(norm.y_NH), dtype};
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
    return {
        projection.adapter.exists() ? glu_forward(gate_up_N2I, activation) : at::Tensor(),
        glu_forward_float8(gate_up_N2I, activation, activation_counts(projection)), dtype};
  }
  return {glu_forward(gate_up_N2I, activation), {}, dtype};
}

at::Tensor multiply(const Projection& projection, const Operand& operand) {
  at::Tensor y_NO = projection.is_float8()
      ? float8_linear(operand.float8, float8_weight(projection), operand.dtype, projection.bias_O)
      : linear_forward(operand.values_NI, projection.weight_OI, projection.bias_O);
  if (projection.adapter.exists()) {
    add_adapters(projection.adapter, operand.values_NI, y_NO);
  }
  return y_NO;
}

at::Tensor multiply_add(const Projection& projection, const Operand& operand, const at::Tensor& residual_NO) {
  TORCH_CHECK(!projection.bias_O.defined(), "a projection with a bias is not added to a residual");
  at::Tensor y_NO = at::empty_like(residual_NO);
  if (projection.is_float8()) {
    product_add_out(operand.float8, float8_weight(projection), residual_NO, y_NO);
  } else {
    product_add_out(operand.values_NI, projection.weight_OI, residual_NO, y_NO);
  }
  if (projection.adapter.exists()) {
    add_adapters(projection.adapter, operand.values_NI, y_NO);
  }
  return y_NO;
}

at::Tensor multiply_fp32(const Projection& projection, const at::Tensor& x_NI) {
  TORCH_CHECK(!projection.is_float8() && !projection.bias_O.defined(), "multiply_fp32: a plain weight is expected");
  at::Tensor y_NO = linear_forward_fp32(x_NI, projection.weight_OI);
  const Adapter& adapter = projection.adapter;
  if (adapter.exists()) {
    const at::Tensor low_NR = linear_forward(adapter_input(adapter, x_NI), adapter.a_RI);
    for_modules(adapter, [&](const Adapter::Module& module, int64_t first, int64_t rank) {
      y_NO.narrow(1, module.first_row, module.b_OR.size(0))
          .add_(linear_forward_fp32(low_NR.narrow(1, first, rank), module.b_OR), module.scale);
    });
  }
  return y_NO;
}

at::Tensor input_gradient(const Projection& projection, const at::Tensor& dy_NO, SharedGradient* shared) {
  at::Tensor dx_NI = projection.is_float8()
      ? float8_linear_backward_input(
            rounded_gradient(projection, dy_NO, shared), float8_weight(projection), dy_NO.scalar_type())
      : linear_backward_input(dy_NO, projection.weight_OI);
  const Adapter& adapter = projection.adapter;
  if (!adapter.exists()) {
    return dx_NI;
  }
  const at::Tensor dlow_NR = low_gradient(adapter, dy_NO, shared);
  return adapter.dropout.probability > 0
      ? dx_NI.add_(dropout(linear_backward_input(dlow_NR, adapter.a_RI), adapter.dropout))
      : dx_NI.addmm_(dlow_NR, adapter.a_RI);
}

void add_weight_gradient(
    const Projection& projection, Projection& gradient, const at::Tensor& dy_NO, const at::Tensor& x_NI,
    SharedGradient* shared) {
  check_gradient(projection, gradient);
  if (projection.float8_weight_gradient && gradient.weight_OI.defined()) {
    float8_linear_backward_weight(
        rounded_gradient(projection, dy_NO, shared), projection.scale_O, x_NI, gradient.weight_OI,
        {.accumulate = !gradient.is_new}, counts_of(projection.float8_counts, Float8Operand::kWeightGradients));
  } else {
    linear_backward_weight(dy_NO, x_NI, gradient.weight_OI, /*accumulate=*/!gradient.is_new);
  }
  if (gradient.adapter.exists()) {
    add_adapter_gradients(projection.adapter, gradient, dy_NO, x_NI, shared);
  }
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
  }
  if (operand.values_NI.defined()) {
    operand.values_NI = operand.values_NI.index_select(0, rows_M);
  }
  return operand;
}

at::Tensor multiply_groups(const Projection& projection, const Operand& operand, const at::Tensor& ends_G) {
  at::Tensor y_MO = projection.is_float8()
      ? grouped_float8_linear(operand.float8, float8_weight(projection), ends_G, operand.dtype)
      : grouped_linear_forward(operand.values_NI, projection.weight_OI, ends_G);
  const Adapter& adapter = projection.adapter;
  if (adapter.exists()) {
    const Adapter::Module& module = module_of_groups(adapter);
    const at::Tensor low_MR = grouped_linear_forward(operand.values_NI, adapter.a_RI, ends_G);
    grouped_linear_add(low_MR, module.b_OR, ends_G, module.scale, y_MO);
  }
  return y_MO;
}

at::Tensor input_gradient_of_groups(
    const Projection& projection, const at::Tensor& dy_MO, const at::Tensor& ends_G, SharedGradient* shared) {
  at::Tensor dx_MI = grouped_linear_backward_input(dy_MO, weights_of_groups(projection, dy_MO.scalar_type()), ends_G);
  const Adapter& adapter = projection.adapter;
  if (adapter.exists()) {
    grouped_linear_backward_input_add(
        low_gradient_of_groups(adapter, dy_MO, ends_G, shared), adapter.a_RI, ends_G, dx_MI);
  }
  return dx_MI;
}

void add_weight_gradient_of_groups(
    const Projection& projection, Projection& gradient, const at::Tensor& dy_MO, const at::Tensor& x_MI,
    const at::Tensor& ends_G, SharedGradient* shared) {
  check_gradient(projection, gradient);
  const bool accumulate = !gradient.is_new;
  grouped_linear_backward_weight(dy_MO, x_MI, ends_G, gradient.weight_OI, accumulate);
  if (!gradient.adapter.exists()) {
    return;
  }
  const Adapter& adapter = projection.adapter;
  check_adapter_gradients(adapter, gradient.adapter);
  const Adapter::Module& module = module_of_groups(adapter);
  const at::Tensor low_MR = grouped_linear_forward(x_MI, adapter.a_RI, ends_G).mul_(module.scale);
  grouped_linear_backward_weight(dy_MO, low_MR, ends_G, gradient.adapter.modules.front().b_OR, accumulate);
  grouped_linear_backward_weight(
      low_gradient_of_groups(adapter, dy_MO, ends_G, shared), x_MI, ends_G, gradient.adapter.a_RI, accumulate);
}

} // namespace distill::models
