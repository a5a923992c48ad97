#include "trainer/models/ops/attention_scores.h"

#include <limits>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/attention_scores_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {
namespace {

// [queries, S]: which keys a query does not see.
at::Tensor hidden_keys(const at::Tensor& scores_KRS, const ScoreTile& tile, const AttentionOptions& options) {
  const at::Tensor all = at::ones({tile.queries, scores_KRS.size(2)}, scores_KRS.options().dtype(at::kBool));
  at::Tensor hidden = at::triu(all, /*diagonal=*/tile.offset + 1);
  if (options.window) {
    hidden.bitwise_or_(at::tril(all, /*diagonal=*/tile.offset - *options.window));
  }
  return hidden;
}

// Scales and caps the scores in place; -inf for keys that a query does not see.
at::Tensor& scale_and_mask_(at::Tensor& scores_KRS, const ScoreTile& tile, const AttentionOptions& options) {
  scores_KRS.mul_(options.scale);
  if (options.softcap > 0) {
    scores_KRS.div_(options.softcap).tanh_().mul_(options.softcap);
  }
  scores_KRS.view({scores_KRS.size(0), -1, tile.queries, scores_KRS.size(2)})
      .masked_fill_(hidden_keys(scores_KRS, tile, options), -std::numeric_limits<double>::infinity());
  return scores_KRS;
}

// A tensor of the compute dtype in the place of `scores`, or beside it.
at::Tensor result_like(const at::Tensor& scores_KRS, at::ScalarType dtype) {
  return dtype == scores_KRS.scalar_type() ? scores_KRS
                                           : at::empty(scores_KRS.sizes(), scores_KRS.options().dtype(dtype));
}

AttentionScoresArgs kernel_args(
    const at::Tensor& scores_KRS, const at::Tensor& probs_KRS, const at::Tensor& lse_KR, const ScoreTile& tile,
    const AttentionOptions& options) {
  AttentionScoresArgs args{};
  args.scores = scores_KRS.mutable_data_ptr();
  args.probs = probs_KRS.mutable_data_ptr();
  args.lse = const_cast<void*>(lse_KR.const_data_ptr()); // the backward pass only reads it
  args.rows = scores_KRS.size(0) * scores_KRS.size(1);
  args.keys = scores_KRS.size(2);
  args.queries = tile.queries;
  args.offset = tile.offset;
  args.window = options.window.value_or(args.keys);
  args.scale = options.scale;
  args.softcap = options.softcap;
  args.type = element_type(probs_KRS.scalar_type());
  return args;
}

void check_tile(const at::Tensor& scores_KRS, const ScoreTile& tile) {
  TORCH_CHECK(
      scores_KRS.dim() == 3 && scores_KRS.is_contiguous() && tile.queries > 0 && tile.offset >= 0 &&
          scores_KRS.size(1) % tile.queries == 0 && tile.offset + tile.queries <= scores_KRS.size(2),
      "attention: contiguous scores of queries ", tile.offset, " to ", tile.offset + tile.queries,
      " are expected, found ", scores_KRS.sizes(), " with strides ", scores_KRS.strides());
}

} // namespace

SoftmaxResult attention_softmax(
    at::Tensor scores_KRS, at::ScalarType dtype, const ScoreTile& tile, const AttentionOptions& options) {
  check_tile(scores_KRS, tile);
  if (!device::runs_on_cuda(scores_KRS)) {
    scale_and_mask_(scores_KRS, tile, options);
    at::Tensor lse_KR = at::logsumexp(scores_KRS, {-1});
    return {scores_KRS.sub_(lse_KR.unsqueeze(-1)).exp_().to(dtype), std::move(lse_KR)};
  }
  SoftmaxResult result{
      result_like(scores_KRS, dtype), at::empty({scores_KRS.size(0), scores_KRS.size(1)}, scores_KRS.options())};
  run_kernel(
      "attention_softmax", launch_attention_softmax,
      kernel_args(scores_KRS, result.probs_KRS, result.lse_KR, tile, options), scores_KRS.device());
  return result;
}

SoftmaxGradient attention_softmax_backward(
    at::Tensor scores_KRS, at::Tensor dprobs_KRS, const at::Tensor& lse_KR, const at::Tensor& row_dot_KR,
    at::ScalarType dtype, const ScoreTile& tile, const AttentionOptions& options) {
  check_tile(scores_KRS, tile);
  TORCH_CHECK(
      dprobs_KRS.sizes() == scores_KRS.sizes() && dprobs_KRS.is_contiguous() && lse_KR.is_contiguous() &&
          row_dot_KR.is_contiguous() && lse_KR.numel() == scores_KRS.size(0) * scores_KRS.size(1) &&
          row_dot_KR.numel() == lse_KR.numel(),
      "attention: contiguous gradients and statistics of the scores ", scores_KRS.sizes(), " are expected, found ",
      dprobs_KRS.sizes(), ", ", lse_KR.sizes(), ", ", row_dot_KR.sizes());
  if (!device::runs_on_cuda(scores_KRS)) {
    scale_and_mask_(scores_KRS, tile, options);
    dprobs_KRS.sub_(row_dot_KR.unsqueeze(-1));
    if (options.softcap > 0) { // the capped scores lie in [-softcap, softcap], those of hidden keys have no slope
      dprobs_KRS.mul_(1 - scores_KRS.clamp_min(-options.softcap).div_(options.softcap).square_());
    }
    const at::Tensor probs = scores_KRS.sub_(lse_KR.unsqueeze(-1)).exp_();
    return {probs.to(dtype), dprobs_KRS.mul_(probs).mul_(options.scale).to(dtype)};
  }
  SoftmaxGradient result{result_like(scores_KRS, dtype), result_like(dprobs_KRS, dtype)};
  AttentionScoresArgs args = kernel_args(scores_KRS, result.probs_KRS, lse_KR, tile, options);
  args.row_dot = row_dot_KR.const_data_ptr();
  args.dprobs = dprobs_KRS.mutable_data_ptr();
  args.dscores = result.dscores_KRS.mutable_data_ptr();
  run_kernel("attention_softmax_backward", launch_attention_softmax_backward, args, scores_KRS.device());
  return result;
}

} // namespace distill::models
