#pragma once

#include "tests/losses/cases.h"
#include "tests/losses/naive.h"

// Teachers of which a few columns are known, and the textbook computation of their losses in fp64. Shares no code with
// losses/.
namespace distill::losses::testing {

// fp64 log-probabilities [N, V] of the teacher of a problem that make_problem() made.
at::Tensor teacher_log_probs(const LinearHeadInputs& in, const LossOptions& options);

// The problem with its teacher's top-k in place of the teacher; log-probabilities of `dtype`, tail of fp32 (fp64 for an
// fp64 problem).
LinearHeadInputs with_topk(
    LinearHeadInputs in, const LossOptions& options, int64_t k, at::ScalarType dtype = at::kDouble);

// The problem with draws from softmax(exponent * log p) and their importance weights, of `dtype`.
LinearHeadInputs with_samples(
    LinearHeadInputs in, const LossOptions& options, int64_t samples, double exponent = 1,
    at::ScalarType dtype = at::kDouble, uint64_t seed = 5);

// The losses on the inputs' top-k or samples as they are, on the full [N, V] logits, differentiated by autograd. Top-k:
// over k + 1 outcomes, of which the student's tail is the sum of its columns.
NaiveResult naive_sparse(const LinearHeadInputs& in, const LossOptions& options, double grad_scale = 1.0);

} // namespace distill::losses::testing
