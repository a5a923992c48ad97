// The GPU test program's device, checked before any test runs.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "tests/losses/device.h"

namespace distill::losses::testing {

c10::Device test_device() {
  static const bool available = [] {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
      std::fprintf(
          stderr, "losses_gpu_test needs a GPU, and this machine has none that CUDA can use: %s\n",
          cudaGetErrorString(error));
      std::exit(1);
    }
    return true;
  }();
  static_cast<void>(available);
  return {c10::kCUDA, 0};
}

namespace {
// At start-up, so that even tests that need no device do not pass without one.
[[maybe_unused]] const c10::Device kDevice = test_device();
} // namespace

} // namespace distill::losses::testing
