#include "trainer/models/ops/routing.h"

#include <ATen/ATen.h>

#include <limits>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/combine_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {
namespace {

// The smallest type that numbers the experts: a sort on CUDA takes time for each byte of its keys.
at::ScalarType key_type(int64_t experts) {
  return experts <= 1 + std::numeric_limits<uint8_t>::max()         ? at::kByte
      : experts <= 1 + int64_t{std::numeric_limits<int16_t>::max()} ? at::kShort
                                                                    : at::kInt;
}

// The end of each expert's part of the sorted keys.
at::Tensor ends_of(const at::Tensor& sorted_M, int64_t experts) {
  if (sorted_M.is_meta()) {
    return at::empty({experts}, sorted_M.options().dtype(at::kInt));
  }
  return at::searchsorted(sorted_M, at::arange(experts, sorted_M.options()), /*out_int32=*/true, /*right=*/true);
}

void combine_on_cuda(
    const at::Tensor& rows_MH, const at::Tensor& places_NK, const at::Tensor& residual_NH, at::Tensor& y_NH) {
  TORCH_CHECK(
      rows_MH.is_contiguous() && places_NK.is_contiguous() && y_NH.is_contiguous() &&
          (!residual_NH.defined() || (residual_NH.is_contiguous() && residual_NH.sizes() == y_NH.sizes())),
      "combine_visits: contiguous rows ", rows_MH.sizes(), " and residual of ", y_NH.sizes(), " are expected");
  if (y_NH.numel() == 0) {
    return;
  }
  CombineArgs args{};
  args.rows = rows_MH.const_data_ptr();
  args.places = places_NK.const_data_ptr<int32_t>();
  args.residual = residual_NH.defined() ? residual_NH.const_data_ptr() : nullptr;
  args.out = y_NH.mutable_data_ptr();
  args.tokens = y_NH.size(0);
  args.per_token = places_NK.size(1);
  args.hidden = y_NH.size(1);
  args.type = element_type(y_NH.scalar_type());
  run_kernel("combine_visits", launch_combine, args, y_NH.device());
}

at::Tensor sum_of(const at::Tensor& values_NK) {
  return values_NK.sum(1, /*keepdim=*/true);
}

} // namespace

Routing route(const at::Tensor& logits_NE, int64_t per_token) {
  TORCH_CHECK(
      logits_NE.dim() == 2 && per_token >= 1 && per_token <= logits_NE.size(1), "route: logits of at least ", per_token,
      " experts are expected, found ", logits_NE.sizes());
  Routing routing;
  routing.probs_NE = at::softmax(logits_NE, 1);
  routing.experts_NK = std::get<1>(routing.probs_NE.topk(per_token, 1, /*largest=*/true, /*sorted=*/true));
  const int64_t visits = routing.experts_NK.numel(), experts = logits_NE.size(1);
  const at::Tensor keys_M = routing.experts_NK.flatten().to(key_type(experts));
  const auto [sorted_M, order_M] = keys_M.sort(/*stable=*/true, 0, /*descending=*/false);
  if (keys_M.is_meta() && device::runs_on_cuda(keys_M)) { // the CUDA sort's own buffers
    at::empty({visits}, order_M.options());
  }
  routing.visits_M = order_M.to(at::kInt);
  routing.places_NK = at::empty_like(routing.experts_NK, routing.visits_M.options());
  at::Tensor places_M = routing.places_NK.view({visits});
  places_M.scatter_(0, order_M, at::arange(visits, routing.visits_M.options()));
  routing.ends_E = ends_of(sorted_M, experts);
  return routing;
}

at::Tensor visiting_tokens(const Routing& routing) {
  return routing.visits_M.div(routing.experts_NK.size(1), "floor");
}

at::Tensor visit_weights(const Routing& routing, bool normalise) {
  at::Tensor weights_NK = routing.probs_NE.gather(1, routing.experts_NK);
  return normalise ? weights_NK.div_(sum_of(weights_NK)) : weights_NK;
}

at::Tensor routing_backward(
    const Routing& routing, bool normalise, const at::Tensor& dweights_NK, at::Tensor dprobs_NE) {
  const at::Tensor& probs_NE = routing.probs_NE;
  at::Tensor dchosen_NK = dweights_NK.to(probs_NE.scalar_type());
  if (normalise) { // w = p / s: dp = (dw - sum of dw w) / s
    const at::Tensor chosen_NK = probs_NE.gather(1, routing.experts_NK);
    const at::Tensor sums_N1 = sum_of(chosen_NK);
    dchosen_NK = dchosen_NK.sub(sum_of(dchosen_NK * chosen_NK).div_(sums_N1)).div_(sums_N1);
  }
  at::Tensor dlogits_NE = dprobs_NE.defined() ? std::move(dprobs_NE) : at::zeros_like(probs_NE);
  dlogits_NE.scatter_add_(1, routing.experts_NK, dchosen_NK); // a token's experts differ
  return dlogits_NE.sub_((dlogits_NE * probs_NE).sum(1, /*keepdim=*/true)).mul_(probs_NE);
}

at::Tensor combine_visits(
    const at::Tensor& rows_MH, const at::Tensor& places_NK, const at::Tensor& residual_NH, bool in_place) {
  const int64_t tokens = places_NK.size(0), per_token = places_NK.size(1);
  if (device::runs_on_cuda(rows_MH)) {
    at::Tensor y_NH = in_place ? residual_NH : at::empty({tokens, rows_MH.size(1)}, rows_MH.options());
    combine_on_cuda(rows_MH, places_NK, residual_NH, y_NH);
    return y_NH;
  }
  const at::ScalarType sums = rows_MH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor rows_NKH = rows_MH.index_select(0, places_NK.flatten()).view({tokens, per_token, rows_MH.size(1)});
  if (!residual_NH.defined()) {
    return rows_NKH.sum(1, /*keepdim=*/false, sums).to(rows_MH.scalar_type());
  }
  at::Tensor sum_NH = rows_NKH.sum(1, /*keepdim=*/false, sums);
  at::Tensor y_NH = in_place ? residual_NH : at::empty_like(residual_NH);
  return at::add_out(y_NH, residual_NH, sum_NH);
}

} // namespace distill::models
