#include "trainer/models/ops/head_gate.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/delta_math.h"

namespace distill::models {
namespace {

constexpr int64_t kTokensPerTask = 8;

// Calls f(element of x, element of the gate) for each element.
template <typename F>
void for_each_element(const at::Tensor& gate_NAD, const F& f) {
  const int64_t heads = gate_NAD.size(1), dim = gate_NAD.size(2);
  at::parallel_for(0, gate_NAD.size(0), kTokensPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t x = (n * heads + head) * dim, gate = n * gate_NAD.stride(0) + head * gate_NAD.stride(1);
        for (int64_t d = 0; d < dim; ++d) {
          f(x + d, gate + d);
        }
      }
    }
  });
}

void check(const at::Tensor& x_NQ, const at::Tensor& gate_NAD) {
  TORCH_CHECK(
      x_NQ.dim() == 2 && x_NQ.is_contiguous() && gate_NAD.dim() == 3 && gate_NAD.stride(2) == 1 &&
          gate_NAD.size(0) == x_NQ.size(0) && gate_NAD.size(1) * gate_NAD.size(2) == x_NQ.size(1),
      "head_gate: contiguous x [N, heads * D] and a gate [N, heads, D] are expected, found ", x_NQ.sizes(), " and ",
      gate_NAD.sizes());
}

} // namespace

at::Tensor head_gate_forward(const at::Tensor& x_NQ, const at::Tensor& gate_NAD) {
  check(x_NQ, gate_NAD);
  if (device::runs_on_cuda(x_NQ)) {
    return gate_NAD.sigmoid().mul_(x_NQ.view(gate_NAD.sizes())).view(x_NQ.sizes());
  }
  at::Tensor y_NQ = at::empty_like(x_NQ);
  if (!x_NQ.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_NQ.scalar_type(), "head_gate", [&] {
      using acc_t = at::opmath_type<scalar_t>;
      const auto *x = x_NQ.const_data_ptr<scalar_t>(), *gate = gate_NAD.const_data_ptr<scalar_t>();
      auto* y = y_NQ.mutable_data_ptr<scalar_t>();
      for_each_element(gate_NAD, [&](int64_t i, int64_t g) {
        y[i] = static_cast<scalar_t>(static_cast<acc_t>(x[i]) * logistic(static_cast<acc_t>(gate[g])));
      });
    });
  }
  return y_NQ;
}

at::Tensor head_gate_backward(
    const at::Tensor& dy_NQ, const at::Tensor& x_NQ, const at::Tensor& gate_NAD, at::Tensor& dgate_NAD) {
  check(x_NQ, gate_NAD);
  TORCH_CHECK(
      dy_NQ.is_contiguous() && dy_NQ.sizes() == x_NQ.sizes() && dgate_NAD.sizes() == gate_NAD.sizes() &&
          dgate_NAD.strides() == gate_NAD.strides(),
      "head_gate: a contiguous gradient ", x_NQ.sizes(), " and one like the gate are expected, found ", dy_NQ.sizes(),
      " and ", dgate_NAD.sizes());
  if (device::runs_on_cuda(x_NQ)) {
    at::Tensor open_NAD = gate_NAD.sigmoid();
    at::Tensor dx_NAD = dy_NQ.view(gate_NAD.sizes()) * open_NAD;
    open_NAD.neg_().add_(1).mul_(dx_NAD);
    at::mul_out(dgate_NAD, open_NAD, x_NQ.view(gate_NAD.sizes()));
    return dx_NAD.view(x_NQ.sizes());
  }
  at::Tensor dx_NQ = at::empty_like(x_NQ);
  if (!x_NQ.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_NQ.scalar_type(), "head_gate_backward", [&] {
      using acc_t = at::opmath_type<scalar_t>;
      const auto *x = x_NQ.const_data_ptr<scalar_t>(), *gate = gate_NAD.const_data_ptr<scalar_t>();
      const auto* dy = dy_NQ.const_data_ptr<scalar_t>();
      auto *dx = dx_NQ.mutable_data_ptr<scalar_t>(), *dgate = dgate_NAD.mutable_data_ptr<scalar_t>();
      for_each_element(gate_NAD, [&](int64_t i, int64_t g) {
        const acc_t open = logistic(static_cast<acc_t>(gate[g])), through = static_cast<acc_t>(dy[i]) * open;
        dx[i] = static_cast<scalar_t>(through);
        dgate[g] = static_cast<scalar_t>(through * static_cast<acc_t>(x[i]) * (1 - open));
      });
    });
  }
  return dx_NQ;
}

} // namespace distill::models
