#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "losses/head/inputs.h"

namespace distill::trainer {

// The probability, at temperature 1, that a teacher puts on tokens which the student's tokenizer lacks. Those with a
// row in both lm_heads are part of the loss's distribution; the others are not, and the loss's teacher is what is left
// without them. N tokens, K such tokens, V rows of the teacher's lm_head, G its hidden size.
class OneSidedMass {
 public:
  // `ids`: the tokens, sorted. Ids without a row in the teacher's lm_head have no probability.
  explicit OneSidedMass(std::vector<int64_t> ids = {}) : ids_(std::move(ids)) {}

  bool empty() const {
    return ids_.empty();
  }
  size_t size() const {
    return ids_.size();
  }
  // Log-sum-exps over those of the tokens that are part of the loss's distribution and over the others: fp32 [N, 2].
  // student_rows: of the student's lm_head. Undefined where there are no such tokens, or `inputs` have no hidden states
  // of a teacher.
  at::Tensor log_sums(const losses::LinearHeadInputs& inputs, int64_t student_rows, double softcap) const;
  // Adds the tokens of a micro-batch. log_sums_N2: of the same inputs; teacher_lse_N: the log-sum-exp over the loss's
  // distribution; targets_N: negative where a token does not count.
  void add(const at::Tensor& log_sums_N2, const at::Tensor& teacher_lse_N, const at::Tensor& targets_N);
  // The sum over all tokens since the last call: fp64 [1] on the device; undefined where none were added.
  at::Tensor take_sum();

 private:
  std::vector<int64_t> ids_;
  at::Tensor sum_1_;
};

} // namespace distill::trainer
