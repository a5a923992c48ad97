#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/delta_math.h"
#include "trainer/models/ops/delta_rule.h"

namespace distill::models {
namespace {

void check(const at::Tensor& ba_N2A, const at::Tensor& a_log_A, const at::Tensor& dt_bias_A) {
  TORCH_CHECK(
      ba_N2A.dim() == 2 && ba_N2A.is_contiguous() && a_log_A.dim() == 1 && ba_N2A.size(1) == 2 * a_log_A.size(0) &&
          dt_bias_A.sizes() == a_log_A.sizes() &&
          (ba_N2A.scalar_type() == at::kFloat || ba_N2A.scalar_type() == at::kDouble),
      "delta_gates: fp32 or fp64 [N, 2A] and vectors [A] are expected, found ", ba_N2A.sizes(), " of dtype ",
      ba_N2A.scalar_type(), ", ", a_log_A.sizes(), " and ", dt_bias_A.sizes());
}

// Calls f(index of the gate, of its b, of its a, head) for each gate.
template <typename F>
void for_each_gate(int64_t tokens, int64_t heads, const F& f) {
  for (int64_t n = 0; n < tokens; ++n) {
    for (int64_t head = 0; head < heads; ++head) {
      f(n * heads + head, 2 * n * heads + head, (2 * n + 1) * heads + head, head);
    }
  }
}

} // namespace

DeltaGates delta_gates(const at::Tensor& ba_N2A, const at::Tensor& a_log_A, const at::Tensor& dt_bias_A) {
  check(ba_N2A, a_log_A, dt_bias_A);
  const int64_t heads = a_log_A.size(0);
  const at::Tensor rate_A = at::exp(a_log_A.to(ba_N2A.scalar_type())), bias_A = dt_bias_A.to(ba_N2A.scalar_type());
  if (device::runs_on_cuda(ba_N2A)) {
    DeltaGates gates;
    gates.beta_NA = ba_N2A.narrow(1, 0, heads).sigmoid();
    gates.decay_NA = at::softplus(ba_N2A.narrow(1, heads, heads) + bias_A).mul_(rate_A).neg_();
    return gates;
  }
  DeltaGates gates{
      at::empty({ba_N2A.size(0), heads}, ba_N2A.options()), at::empty({ba_N2A.size(0), heads}, ba_N2A.options())};
  if (ba_N2A.is_meta()) {
    return gates;
  }
  AT_DISPATCH_FLOATING_TYPES(ba_N2A.scalar_type(), "delta_gates", [&] {
    const auto *ba = ba_N2A.const_data_ptr<scalar_t>(), *rate = rate_A.const_data_ptr<scalar_t>();
    const auto* bias = bias_A.const_data_ptr<scalar_t>();
    auto *decay = gates.decay_NA.mutable_data_ptr<scalar_t>(), *beta = gates.beta_NA.mutable_data_ptr<scalar_t>();
    for_each_gate(ba_N2A.size(0), heads, [&](int64_t gate, int64_t b, int64_t a, int64_t head) {
      beta[gate] = logistic(ba[b]);
      decay[gate] = -rate[head] * softplus(ba[a] + bias[head]);
    });
  });
  return gates;
}

at::Tensor delta_gates_backward(
    const DeltaGates& gates, const at::Tensor& ba_N2A, const at::Tensor& a_log_A, const at::Tensor& dt_bias_A,
    const DeltaGates& dgates, at::Tensor& da_log_A, at::Tensor& ddt_bias_A) {
  check(ba_N2A, a_log_A, dt_bias_A);
  const int64_t heads = a_log_A.size(0);
  const at::Tensor rate_A = at::exp(a_log_A.to(ba_N2A.scalar_type())), bias_A = dt_bias_A.to(ba_N2A.scalar_type());
  at::Tensor dba_N2A = at::empty_like(ba_N2A);
  const at::Tensor da_NA = dba_N2A.narrow(1, heads, heads);
  if (da_log_A.defined()) {
    da_log_A.add_((dgates.decay_NA * gates.decay_NA).sum(0));
  }
  if (device::runs_on_cuda(ba_N2A)) {
    at::Tensor db_NA = dba_N2A.narrow(1, 0, heads);
    at::mul_out(db_NA, dgates.beta_NA.mul_(gates.beta_NA), 1 - gates.beta_NA);
    const at::Tensor slope_NA = (ba_N2A.narrow(1, heads, heads) + bias_A).sigmoid_().mul_(rate_A).neg_();
    at::Tensor da_out_NA = da_NA;
    at::mul_out(da_out_NA, dgates.decay_NA, slope_NA);
  } else if (!ba_N2A.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES(ba_N2A.scalar_type(), "delta_gates_backward", [&] {
      const auto *ba = ba_N2A.const_data_ptr<scalar_t>(), *rate = rate_A.const_data_ptr<scalar_t>();
      const auto *bias = bias_A.const_data_ptr<scalar_t>(), *beta = gates.beta_NA.const_data_ptr<scalar_t>();
      const auto* ddecay = dgates.decay_NA.const_data_ptr<scalar_t>();
      const auto* dbeta = dgates.beta_NA.const_data_ptr<scalar_t>();
      auto* dba = dba_N2A.mutable_data_ptr<scalar_t>();
      for_each_gate(ba_N2A.size(0), heads, [&](int64_t gate, int64_t b, int64_t a, int64_t head) {
        dba[b] = dbeta[gate] * beta[gate] * (1 - beta[gate]);
        dba[a] = -ddecay[gate] * rate[head] * logistic(ba[a] + bias[head]);
      });
    });
  }
  if (ddt_bias_A.defined()) {
    ddt_bias_A.add_(da_NA.sum(0));
  }
  return dba_N2A;
}

} // namespace distill::models
