#pragma once

#include <cstdint>

struct CUstream_st; // cudaStream_t is a pointer to it

namespace distill::optim {

// Values that all elements of an AdamW step share, in fp32 as in at::_fused_adamw_.
struct AdamWFactors {
  float beta1;
  float beta2;
  float eps;
  float decay; // learning rate times weight decay
  float grad_scale; // gradients are divided by it
  float step_size;
  float bias_correction2_sqrt;
  int32_t skipped; // not 0: the step writes nothing
  uint64_t step; // this step's number, from 1
};

// What the factors of a step are made from.
struct AdamWStep {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  const float* step_count; // [1] this step's number, from 1
  const float* grad_scale; // [1] the gradient is divided by it
  const float* found_inf; // [1] not 0: nothing is written
  AdamWFactors* factors; // the result
};

// One step of AdamW (Loshchilov and Hutter, 2019) on n flat fp32 elements, with the arithmetic of at::_fused_adamw_,
// and with the bf16 copy written in the same pass. The gradient is only read. Moments in bf16 are widened, updated in
// fp32, used, and rounded stochastically (adamw_math.h).
struct AdamWArgs {
  float* params; // [n]
  const void* gradient; // [n], fp32 or bf16
  bool bf16_gradient;
  void* exp_avg; // [n], fp32 or bf16
  void* exp_avg_sq; // [n], as exp_avg
  bool bf16_moments;
  int64_t unit; // with bf16 moments: the number of the elements' unit
  int64_t first; // with bf16 moments: position of the first element in the whole unit
  void* bf16_copy; // [n] bf16, or null: the parameters after the step, rounded
  int64_t n;
  int64_t decay_begin; // elements before it (norms and biases) are not decayed
  const AdamWFactors* factors; // where the step runs: on the device or the host
};

// Queues a kernel that writes the factors; its pointers are to the device's memory. A CPU that updates a part of the
// parameters reads these factors, since its own powf differs in the last bit. Returns null, or CUDA's error message.
const char* launch_adamw_factors(const AdamWStep& step, CUstream_st* stream);
void adamw_factors_on_cpu(const AdamWStep& step);

// Queues the step; returns null, or CUDA's error message. Pointers need the alignment of their elements only; one pass
// of 16-byte accesses where the fp32 pointers are multiples of 16 bytes and those of bf16 of 8.
const char* launch_adamw(const AdamWArgs& args, CUstream_st* stream);

// The same on the CPU, on this number of threads. The step is complete on return. The results are those of the kernel,
// bit for bit, given the same factors: both compute the same IEEE operations in the same order.
void adamw_on_cpu(const AdamWArgs& args, int threads);

} // namespace distill::optim
