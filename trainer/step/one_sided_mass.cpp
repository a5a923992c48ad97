#include "trainer/step/one_sided_mass.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace distill::trainer {
namespace {

constexpr int64_t kRows = 1024; // tokens whose logits exist at a time

at::Tensor log_sum(const at::Tensor& logits_NK) {
  return logits_NK.size(1) > 0
      ? logits_NK.logsumexp(1)
      : at::full({logits_NK.size(0)}, -std::numeric_limits<float>::infinity(), logits_NK.options());
}

} // namespace

at::Tensor OneSidedMass::log_sums(const losses::LinearHeadInputs& inputs, int64_t student_rows, double softcap) const {
  if (ids_.empty() || !inputs.teacher_hidden_NG.defined() || !inputs.teacher_weight_VG.defined()) {
    return {};
  }
  const int64_t teacher_rows = inputs.teacher_weight_VG.size(0);
  const int64_t columns = std::min(teacher_rows, student_rows); // of the loss's distribution
  std::vector<int64_t> ids;
  std::copy_if(ids_.begin(), ids_.end(), std::back_inserter(ids), [&](int64_t id) { return id < teacher_rows; });
  const auto inside = std::lower_bound(ids.begin(), ids.end(), columns) - ids.begin();
  const at::Tensor rows_K = at::tensor(ids, at::kLong).to(inputs.teacher_weight_VG.device());
  const at::Tensor weight_GK = inputs.teacher_weight_VG.index_select(0, rows_K).to(at::kFloat).t();
  std::vector<at::Tensor> parts;
  const int64_t tokens = inputs.teacher_hidden_NG.size(0);
  for (int64_t begin = 0; begin < tokens; begin += kRows) {
    const at::Tensor hidden = inputs.teacher_hidden_NG.narrow(0, begin, std::min(kRows, tokens - begin));
    at::Tensor logits_NK = hidden.to(at::kFloat).matmul(weight_GK);
    if (softcap > 0) {
      logits_NK = softcap * (logits_NK / softcap).tanh();
    }
    parts.push_back(at::stack(
        {log_sum(logits_NK.narrow(1, 0, inside)), log_sum(logits_NK.narrow(1, inside, logits_NK.size(1) - inside))},
        1));
  }
  return at::cat(parts);
}

void OneSidedMass::add(const at::Tensor& log_sums_N2, const at::Tensor& teacher_lse_N, const at::Tensor& targets_N) {
  if (!log_sums_N2.defined()) {
    return;
  }
  const at::Tensor sums = log_sums_N2.to(at::kDouble);
  const at::Tensor whole_N1 = at::logaddexp(teacher_lse_N.to(at::kDouble), sums.select(1, 1)).unsqueeze(1);
  const at::Tensor mass_N = (sums - whole_N1).exp().sum(1);
  const at::Tensor counted = at::where(targets_N >= 0, mass_N, at::zeros_like(mass_N)).sum().reshape({1});
  sum_1_ = sum_1_.defined() ? sum_1_ + counted : counted;
}

at::Tensor OneSidedMass::take_sum() {
  return std::exchange(sum_1_, at::Tensor());
}

} // namespace distill::trainer
