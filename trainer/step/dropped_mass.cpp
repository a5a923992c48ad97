#include "trainer/step/dropped_mass.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace distill::trainer {
namespace {

constexpr int64_t kRows = 1024; // tokens whose logits exist at a time

} // namespace

at::Tensor DroppedMass::log_sum(const losses::LinearHeadInputs& inputs, double softcap) const {
  if (rows_.empty() || !inputs.teacher_hidden_NG.defined() || !inputs.teacher_weight_VG.defined()) {
    return {};
  }
  const at::Tensor rows_K = at::tensor(rows_, at::kLong).to(inputs.teacher_weight_VG.device());
  const at::Tensor weight_GK = inputs.teacher_weight_VG.index_select(0, rows_K).to(at::kFloat).t();
  std::vector<at::Tensor> parts{at::empty({0}, weight_GK.options())}; // where there is no token at all
  const int64_t tokens = inputs.teacher_hidden_NG.size(0);
  for (int64_t begin = 0; begin < tokens; begin += kRows) {
    const at::Tensor hidden = inputs.teacher_hidden_NG.narrow(0, begin, std::min(kRows, tokens - begin));
    at::Tensor logits_NK = hidden.to(at::kFloat).matmul(weight_GK);
    if (softcap > 0) {
      logits_NK = softcap * (logits_NK / softcap).tanh();
    }
    parts.push_back(logits_NK.logsumexp(1));
  }
  return at::cat(parts);
}

void DroppedMass::add(const at::Tensor& log_sum_N, const at::Tensor& teacher_lse_N, const at::Tensor& targets_N) {
  if (!log_sum_N.defined()) {
    return;
  }
  const at::Tensor sum_N = log_sum_N.to(at::kDouble);
  const at::Tensor mass_N = (sum_N - at::logaddexp(teacher_lse_N.to(at::kDouble), sum_N)).exp();
  const at::Tensor counted = at::where(targets_N >= 0, mass_N, at::zeros_like(mass_N)).sum().reshape({1});
  sum_1_ = sum_1_.defined() ? sum_1_ + counted : counted;
}

at::Tensor DroppedMass::take_sum() {
  return std::exchange(sum_1_, at::Tensor());
}

} // namespace distill::trainer
