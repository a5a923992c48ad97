#pragma once

namespace distill::losses {

// Makes the first call of libtorch's elementwise tanh, exp, cos and sin on one thread. Call it before code that uses
// one of them on CPU tensors of fp32 or fp64 (logsumexp uses exp); only the process's first call does anything.
//
// libtorch computes these functions with MKL, which chooses a function's kernel during its first call. Where several
// threads make that call together, one of them may get a kernel of lower accuracy for its part of the tensor:
// https://github.com/pytorch/pytorch/issues/188792. Errors of 4e-5 were seen in tanh, instead of 1e-7.
void prepare_vector_math();

} // namespace distill::losses
