#pragma once

namespace distill::losses {

// Makes libtorch's elementwise tanh, exp, cos and sin safe to be called on a CPU by several threads at once. Call it
// before the first of them that a file makes; all calls but the process's first cost one comparison.
//
// libtorch computes them with MKL, which chooses a function's kernel while it is called for the first time. Where
// several threads make that first call together, one of them may get a kernel of lower accuracy for its part of the
// tensor: https://github.com/pytorch/pytorch/issues/188792. Errors of 4e-5 were seen in tanh, instead of 1e-7. Here one
// thread makes the first call of each function.
void prepare_vector_math();

} // namespace distill::losses
