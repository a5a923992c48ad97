#pragma once

#include <ATen/core/Tensor.h>

#include "losses/rows/cuda/launch.h"

// These functions run the row kernel of a device.
namespace distill::losses {

// Throws for types that the row kernels do not know.
ElementType element_type(c10::ScalarType type);

// RowTensors are RowArgs as tensors of one device: R rows of V contiguous columns. Undefined ones are null in RowArgs.
struct RowTensors {
  at::Tensor student_RV; // logits: fp32, bf16 or fp64
  at::Tensor teacher_RV; // the student's dtype
  at::Tensor student_bias_V; // fp32, bf16 or fp64; both biases have one dtype
  at::Tensor teacher_bias_V;
  at::Tensor targets_R; // int64
  at::Tensor token_weights_R; // of the compute type
  at::Tensor gradient_RV; // fp32, bf16 or fp64
  at::Tensor metrics_MR; // [kNumTokenMetrics, R] of the compute type
  at::Tensor saved_SR; // [kNumSavedValues, R] of the compute type; rows as far apart as those of metrics_MR
};

// Returns pointers into the tensors, which must outlive them.
RowArgs row_args(const RowTensors& tensors, const LossOptions& options);

// Runs the row kernel: on the CPU at once, on CUDA queued on the current stream. On meta tensors nothing runs, and the
// memory that the kernel of the device type `kernels` takes is allocated and released (losses/meta_device.h).
void run_rows(
    const RowTensors& tensors, const LossOptions& options, c10::DeviceType kernels, const RowLaunch& launch = {});

// Does the same for rows that are no tensors.
void run_rows(const RowArgs& args, c10::Device device, const RowLaunch& launch = {});

} // namespace distill::losses
