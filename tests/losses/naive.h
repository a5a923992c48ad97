#pragma once

#include "losses/head/linear_head.h"
#include "tests/losses/cases.h"

// The textbook computation in fp64 on the full [N, V] logits, differentiated by autograd. Shares no code with losses/.
namespace distill::losses::testing {

struct NaiveResult {
  at::Tensor loss_N; // weighted, 0 at ignored tokens
  at::Tensor hard_N;
  at::Tensor soft_N;
  at::Tensor forward_kl_N;
  at::Tensor reverse_kl_N;
  at::Tensor student_entropy_N;
  at::Tensor teacher_entropy_N;
  at::Tensor student_lse_N;
  at::Tensor teacher_lse_N;
  at::Tensor teacher_ce_N;
  at::Tensor agreement_N;
  at::Tensor accuracy_N;
  at::Tensor d_hidden_NH; // gradients of grad_scale * sum(loss_N)
  at::Tensor d_weight_VH;
  at::Tensor d_bias_V;
};

// `compute`: fp64, or fp32 for the error that a plain computation with fp32 logits makes.
NaiveResult naive_head(
    const LinearHeadInputs& inputs, const LossOptions& options, double grad_scale = 1.0,
    at::ScalarType compute = at::kDouble);

// Expects relative errors of every metric below `tolerance`, and of the gradients below `gradient_tolerance`, which is
// larger for a bf16 student: its gradient of the logits is rounded to bf16.
void expect_near(const HeadResult& ours, const NaiveResult& naive, double tolerance, double gradient_tolerance);

// The divergence of each row from log-probabilities of any outcomes, [N, O].
at::Tensor naive_divergence(const LossOptions& options, const at::Tensor& lp_NO, const at::Tensor& lq_NO);

// The student's logits [N, vocab] in fp64 after bias and softcap.
at::Tensor naive_logits(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias, double softcap, int64_t vocab);

} // namespace distill::losses::testing
