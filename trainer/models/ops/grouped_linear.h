#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/ops/float8.h"

// Matrix products of linear layers, one for each of G groups of rows. M rows, sorted by group; I inputs, O outputs. The
// groups' weights are one below the other, [G * O, I]. ends_G (int32) has the end of each group's rows, on the rows'
// device; the last one is M, and a group may have no rows.
//
// On CUDA the products are one kernel for all groups, which reads ends_G on the device: bf16, and sizes that are
// multiples of 8. Other dtypes and sizes take a product for each group, for which the host waits for ends_G.
namespace distill::models {

// x W^T: [M, O].
at::Tensor grouped_linear_forward(const at::Tensor& x_MI, const at::Tensor& weights, const at::Tensor& ends_G);

// The same of float8 rows and weights (ops/float8.h), in `dtype`. One kernel on GPUs of compute capability 9.0, with
// sizes that are multiples of 16.
at::Tensor grouped_float8_linear(
    const Float8Rows& x_MI, const Float8Rows& weights, const at::Tensor& ends_G, at::ScalarType dtype);

// y += alpha * x W^T. The kernel's product is rounded before it is added; elsewhere there is one rounding.
void grouped_linear_add(
    const at::Tensor& x_MI, const at::Tensor& weights, const at::Tensor& ends_G, double alpha, at::Tensor& y_MO);

// dy W: [M, I].
at::Tensor grouped_linear_backward_input(const at::Tensor& dy_MO, const at::Tensor& weights, const at::Tensor& ends_G);

// dx += dy W, rounded as grouped_linear_add rounds.
void grouped_linear_backward_input_add(
    const at::Tensor& dy_MO, const at::Tensor& weights, const at::Tensor& ends_G, at::Tensor& dx_MI);

// grads += dy^T x of each group, [G * O, I] in fp32, or in the inputs' own dtype; `accumulate` false: grads = dy^T x,
// zeros for a group without rows. The kernel's result is rounded to bf16 before it is added: each micro-batch's part of
// a gradient is rounded once, and their sum is not. An undefined gradient is skipped.
void grouped_linear_backward_weight(
    const at::Tensor& dy_MO, const at::Tensor& x_MI, const at::Tensor& ends_G, at::Tensor& grads, bool accumulate);

} // namespace distill::models
