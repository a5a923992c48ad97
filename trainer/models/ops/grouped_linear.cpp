#include "trainer/models/ops/grouped_linear.h"

#include <ATen/ATen.h>

#include <functional>

#include "trainer/device/device_hooks.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/blas_lt.h"
#include "trainer/models/ops/group_gradient_kernel.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/ops/linear.h"

namespace distill::models {
namespace {

struct Group {
  int64_t index = 0;
  int64_t first_row = 0, rows = 0;

  at::Tensor of_rows(const at::Tensor& rows_MX) const {
    return rows_MX.narrow(0, first_row, rows);
  }
  at::Tensor of_weights(const at::Tensor& weights, int64_t outputs) const {
    return weights.narrow(0, index * outputs, outputs);
  }
};

// Waits for ends_G where that is on a device. A simulation knows no groups: their products allocate nothing.
void for_each_group(const at::Tensor& ends_G, int64_t rows, const std::function<void(const Group&)>& visit) {
  if (ends_G.is_meta()) {
    return;
  }
  const device::AllowSynchronization allowed;
  const at::Tensor ends = ends_G.cpu();
  const int32_t* end = ends.const_data_ptr<int32_t>();
  int64_t first_row = 0;
  for (int64_t group = 0; group < ends.numel(); ++group) {
    visit({group, first_row, end[group] - first_row});
    first_row = end[group];
  }
  TORCH_CHECK(first_row == rows, "the last group ends at row ", first_row, " of ", rows);
}

int64_t outputs_of(const at::Tensor& weights, const at::Tensor& ends_G) {
  TORCH_CHECK(
      weights.dim() == 2 && ends_G.dim() == 1 && ends_G.scalar_type() == at::kInt && ends_G.numel() > 0 &&
          weights.size(0) % ends_G.numel() == 0,
      "grouped product: weights ", weights.sizes(), " do not fit ", ends_G.numel(), " groups");
  return weights.size(0) / ends_G.numel();
}

bool has_kernel(const at::Tensor& rows_MX, int64_t inputs, int64_t outputs) {
  return device::runs_on_cuda(rows_MX) && rows_MX.scalar_type() == at::kBFloat16 && inputs % 8 == 0 &&
      outputs % 8 == 0 && rows_MX.size(0) > 0;
}

// A copy of a group's rows, with rows of zeros up to a multiple of 16: cuBLAS refuses other numbers of float8 rows and
// scales that do not begin at a multiple of 16 bytes.
Float8Rows aligned_rows(const Float8Rows& rows_MI, const Group& group) {
  const int64_t rows = (group.rows + 15) / 16 * 16, columns = rows_MI.values_RC.size(1);
  const at::Tensor bytes = at::zeros({rows, columns}, rows_MI.values_RC.options().dtype(at::kByte));
  bytes.narrow(0, 0, group.rows).copy_(group.of_rows(rows_MI.values_RC).view(at::kByte));
  const at::Tensor scale = at::zeros({rows}, rows_MI.scale_R.options());
  scale.narrow(0, 0, group.rows).copy_(group.of_rows(rows_MI.scale_R));
  return {bytes.view(rows_MI.values_RC.scalar_type()), scale};
}

// [G, O, I]
at::Tensor stacked(const at::Tensor& weights, int64_t outputs) {
  return weights.view({weights.size(0) / outputs, outputs, weights.size(1)});
}

} // namespace

at::Tensor grouped_linear_forward(const at::Tensor& x_MI, const at::Tensor& weights, const at::Tensor& ends_G) {
  const int64_t outputs = outputs_of(weights, ends_G);
  if (has_kernel(x_MI, x_MI.size(1), outputs) && !x_MI.is_meta()) {
    return at::_grouped_mm(x_MI, stacked(weights, outputs).transpose(1, 2), ends_G);
  }
  at::Tensor y_MO = at::empty({x_MI.size(0), outputs}, x_MI.options());
  for_each_group(ends_G, x_MI.size(0), [&](const Group& group) {
    at::Tensor y = group.of_rows(y_MO);
    at::mm_out(y, group.of_rows(x_MI), group.of_weights(weights, outputs).t());
  });
  return y_MO;
}

void grouped_linear_add(
    const at::Tensor& x_MI, const at::Tensor& weights, const at::Tensor& ends_G, double alpha, at::Tensor& y_MO) {
  const int64_t outputs = outputs_of(weights, ends_G);
  if (has_kernel(x_MI, x_MI.size(1), outputs)) {
    y_MO.add_(grouped_linear_forward(x_MI, weights, ends_G), alpha);
    return;
  }
  for_each_group(ends_G, x_MI.size(0), [&](const Group& group) {
    group.of_rows(y_MO).addmm_(group.of_rows(x_MI), group.of_weights(weights, outputs).t(), /*beta=*/1, alpha);
  });
}

at::Tensor grouped_float8_linear(
    const Float8Rows& x_MI, const Float8Rows& weights, const at::Tensor& ends_G, at::ScalarType dtype) {
  const at::Tensor& x = x_MI.values_RC;
  const int64_t outputs = outputs_of(weights.values_RC, ends_G);
  at::Tensor y_MO = at::empty({x.size(0), outputs}, x.options().dtype(dtype));
  if (x.is_meta()) {
    return y_MO;
  }
  if (x.is_cuda() && x.size(0) > 0 && dtype == at::kBFloat16 && blas_lt_scales_rows(x.device())) {
    TORCH_CHECK(
        outputs % 16 == 0 && x.size(1) % 16 == 0,
        "float8: weights whose sizes are multiples of 16 are expected, found ", outputs, " x ", x.size(1));
    y_MO.reset();
    return at::_scaled_grouped_mm(
        x, stacked(weights.values_RC, outputs).transpose(1, 2), x_MI.scale_R, weights.scale_R.view({-1, outputs}),
        ends_G, /*bias=*/{}, /*scale_result=*/{}, dtype, /*use_fast_accum=*/true);
  }
  for_each_group(ends_G, x.size(0), [&](const Group& group) {
    if (group.rows > 0) {
      const Float8Rows weight{group.of_weights(weights.values_RC, outputs), group.of_weights(weights.scale_R, outputs)};
      const at::Tensor y = float8_linear(aligned_rows(x_MI, group), weight, dtype);
      group.of_rows(y_MO).copy_(y.narrow(0, 0, group.rows));
    }
  });
  return y_MO;
}

at::Tensor grouped_linear_backward_input(const at::Tensor& dy_MO, const at::Tensor& weights, const at::Tensor& ends_G) {
  const int64_t outputs = outputs_of(weights, ends_G), inputs = weights.size(1);
  if (has_kernel(dy_MO, inputs, outputs) && !dy_MO.is_meta()) {
    return at::_grouped_mm(dy_MO, stacked(weights, outputs), ends_G);
  }
  at::Tensor dx_MI = at::empty({dy_MO.size(0), inputs}, dy_MO.options());
  for_each_group(ends_G, dy_MO.size(0), [&](const Group& group) {
    at::Tensor dx = group.of_rows(dx_MI);
    at::mm_out(dx, group.of_rows(dy_MO), group.of_weights(weights, outputs));
  });
  return dx_MI;
}

void grouped_linear_backward_input_add(
    const at::Tensor& dy_MO, const at::Tensor& weights, const at::Tensor& ends_G, at::Tensor& dx_MI) {
  const int64_t outputs = outputs_of(weights, ends_G);
  if (has_kernel(dy_MO, weights.size(1), outputs)) {
    dx_MI.add_(grouped_linear_backward_input(dy_MO, weights, ends_G));
    return;
  }
  for_each_group(ends_G, dy_MO.size(0), [&](const Group& group) {
    group.of_rows(dx_MI).addmm_(group.of_rows(dy_MO), group.of_weights(weights, outputs));
  });
}

void grouped_linear_backward_weight(
    const at::Tensor& dy_MO, const at::Tensor& x_MI, const at::Tensor& ends_G, at::Tensor& grads, bool accumulate) {
  if (!grads.defined()) {
    return;
  }
  const int64_t outputs = outputs_of(grads, ends_G), inputs = x_MI.size(1);
  if (has_kernel(x_MI, inputs, outputs)) {
    TORCH_CHECK(
        grads.is_contiguous() && (grads.scalar_type() == at::kFloat || grads.scalar_type() == at::kBFloat16),
        "grouped product: contiguous gradients in fp32 or bf16 are expected, found ", grads.scalar_type());
    const at::Tensor parts = x_MI.is_meta() ? at::empty({ends_G.numel(), outputs, inputs}, x_MI.options())
                                            : at::_grouped_mm(dy_MO.t(), x_MI, ends_G);
    const GroupGradientArgs args{
        .parts = parts.const_data_ptr(),
        .ends = ends_G.const_data_ptr<int32_t>(),
        .grads = grads.mutable_data_ptr(),
        .groups = ends_G.numel(),
        .size = outputs * inputs,
        .accumulate = accumulate,
        .type = element_type(grads.scalar_type())};
    run_kernel("group_gradient", launch_group_gradient, args, grads.device());
    return;
  }
  for_each_group(ends_G, x_MI.size(0), [&](const Group& group) {
    at::Tensor grad = group.of_weights(grads, outputs);
    if (group.rows > 0) {
      linear_backward_weight(group.of_rows(dy_MO), group.of_rows(x_MI), grad, accumulate);
    } else if (!accumulate) {
      grad.zero_();
    }
  });
}

} // namespace distill::models
