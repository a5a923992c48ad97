#pragma once

#include "losses/rows.h"

// The gradient of cross-entropy from the log-sum-exps that its forward pass saved: one read of the logits, one write,
// no reduction.
namespace distill::losses {

// R rows of V columns; strides are in elements. Computation is in fp32, or fp64 where the logits are fp64.
struct CrossEntropyBackwardArgs {
  const void* logits = nullptr; // [R, V]
  void* gradient = nullptr; // [R, V] of the same type; may be `logits`
  const int64_t* targets = nullptr; // [R]; kIgnoreIndex: the gradient is 0
  const void* lse = nullptr; // [R] of the compute type: log-sum-exp of the logits after the softcap
  const void* scale = nullptr; // [R] of the compute type: the incoming gradient of each token
  ElementType type = ElementType::kFloat32;
  int64_t num_rows = 0;
  int64_t vocab = 0;
  int64_t logits_stride = 0;
  int64_t gradient_stride = 0;
  LossOptions options; // hard_weight, label_smoothing, z_loss and student_softcap are used
};

void cross_entropy_backward_cpu(const CrossEntropyBackwardArgs& args);

// Queues it on `stream` (a cudaStream_t). Null, or what is wrong. no_cuda.cpp stands in for builds without CUDA.
const char* launch_cross_entropy_backward(const CrossEntropyBackwardArgs& args, void* stream);

} // namespace distill::losses
