#pragma once

#include <ATen/core/Tensor.h>

// Products by the fastest of the kernels that cublasLt offers.
namespace distill::losses {

// out_MN = alpha * a_MK b_KN + beta * added_MN; shapes and strides as matrix_product_out() wants them.
struct MatmulProblem {
  at::Tensor out_MN; // bf16 or fp32
  at::Tensor a_MK; // bf16
  at::Tensor b_KN; // bf16
  at::Tensor added_MN; // of out's dtype, or undefined with beta 0
  double alpha;
  double beta;
};

// Enqueues the product on the current stream. False where cublasLt has no kernel for it that sums in one pass: nothing
// was enqueued, and the caller computes it otherwise.
bool tuned_matmul(const MatmulProblem& problem);

// For tests: how many kernels there are to choose from, and the product by one of them.
size_t matmul_candidates(const MatmulProblem& problem);
void matmul_with_candidate(const MatmulProblem& problem, size_t candidate);

} // namespace distill::losses
