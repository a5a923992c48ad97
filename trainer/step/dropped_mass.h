#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "losses/head/inputs.h"

namespace distill::trainer {

// The probability, at temperature 1, that a teacher puts on tokens that are no columns of the loss's distribution
// (Vocabulary::dropped): the loss's teacher is what is left without them. N tokens, K dropped ones, V rows of the
// teacher's lm_head, G its hidden size.
class DroppedMass {
 public:
  // `rows`: of the teacher's lm_head, sorted.
  explicit DroppedMass(std::vector<int64_t> rows = {}) : rows_(std::move(rows)) {}

  bool empty() const {
    return rows_.empty();
  }
  size_t size() const {
    return rows_.size();
  }
  // Log-sum-exp over those tokens: fp32 [N]. Undefined where there are none, or `inputs` have no hidden states of a
  // teacher.
  at::Tensor log_sum(const losses::LinearHeadInputs& inputs, double softcap) const;
  // Adds the tokens of a micro-batch. log_sum_N: of the same inputs; teacher_lse_N: the log-sum-exp over the loss's
  // distribution; targets_N: negative where a token does not count.
  void add(const at::Tensor& log_sum_N, const at::Tensor& teacher_lse_N, const at::Tensor& targets_N);
  // The sum over all tokens since the last call: fp64 [1] on the device; undefined where none were added.
  at::Tensor take_sum();

 private:
  std::vector<int64_t> rows_;
  at::Tensor sum_1_;
};

} // namespace distill::trainer
