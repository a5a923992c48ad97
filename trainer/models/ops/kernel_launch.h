#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "trainer/models/ops/kernel.h"

// The functions with which an op's .cpp runs a kernel. The same source serves builds without CUDA, where
// kernels_no_cuda.cpp supplies the launch functions.
namespace distill::models {

// bf16, fp16, fp32, fp64; anything else is an error.
ElementType element_type(at::ScalarType type);

CUstream_st* current_stream(at::Device device);

// Queues `launch` on the device's current stream; does nothing for meta tensors. A launch function returns null, or
// CUDA's error message.
template <typename Args>
void run_kernel(
    const char* name, const char* (*launch)(const Args&, CUstream_st*), const Args& args, at::Device device) {
  if (device.is_meta()) {
    return;
  }
  const at::DeviceGuard guard(device);
  const char* problem = launch(args, current_stream(device));
  TORCH_CHECK(problem == nullptr, name, ": ", problem);
}

} // namespace distill::models
