#include "trainer/step/loss_head.h"

#include <ATen/ATen.h>

namespace distill::trainer {

at::Tensor run_loss_head(
    std::vector<Prediction>& predictions, const at::Tensor& hidden_NH, const at::Tensor& weight_VH,
    const losses::LossOptions& loss, const losses::ChunkOptions& chunks, const losses::LinearHeadGrads* grads) {
  std::vector<at::Tensor> metrics; // of each prediction's tokens
  int64_t begin = 0;
  for (auto& [count, head, aligned] : predictions) {
    head.hidden_NH = hidden_NH.narrow(0, begin, count);
    head.weight_VH = weight_VH;
    losses::LinearHeadGrads part;
    if (grads != nullptr) {
      part = *grads;
      part.hidden_NH = grads->hidden_NH.narrow(0, begin, count);
      part.accumulate = grads->accumulate || begin > 0;
    }
    metrics.push_back(losses::linear_head(head, loss, chunks, grads != nullptr ? &part : nullptr).metrics_MN);
    begin += count;
  }
  return metrics.size() == 1 ? metrics.front() : at::cat(metrics, 1);
}

} // namespace distill::trainer
