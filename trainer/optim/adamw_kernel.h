#pragma once

#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace distill::optim {

// One step of AdamW (Loshchilov and Hutter, 2019) on n flat fp32 elements, as at::_fused_adamw_ computes it, with the
// bf16 copy written in the same pass. The gradient is only read: at::_fused_adamw_ also writes it back divided.
// Moments in bf16 are widened, updated in fp32, used, and rounded stochastically (adamw_math.h).
struct AdamWArgs {
  float* params; // [n]
  const float* gradient; // [n]
  void* exp_avg; // [n], fp32 or bf16
  void* exp_avg_sq; // [n], as exp_avg
  bool bf16_moments;
  int64_t unit; // with bf16 moments: the number of the elements' unit
  int64_t first; // with bf16 moments: position of the first element in the whole unit
  void* bf16_copy; // [n] bf16, or null: the parameters after the step, rounded
  int64_t n;
  int64_t decay_begin; // elements before it (norms and biases) are not decayed
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  const float* step_count; // [1] on the device: this step's number, from 1
  const float* grad_scale; // [1] on the device: the gradient is divided by it; null: not divided
  const float* found_inf; // [1] on the device: not 0: nothing is written; null: never
};

// Queues the step; returns null, or CUDA's error message. Pointers need the alignment of their elements only; one pass
// of 16-byte accesses where the fp32 pointers are multiples of 16 bytes and those of bf16 of 8.
const char* launch_adamw(const AdamWArgs& args, CUstream_st* stream);

// The same on the CPU, on all threads, for moments in bf16; those in fp32 are at::_fused_adamw_'s. The step is complete
// on return.
void adamw_on_cpu(const AdamWArgs& args);

} // namespace distill::optim
