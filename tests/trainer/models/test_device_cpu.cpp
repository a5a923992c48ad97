#include <cstdlib>

#include "tests/trainer/models/test_device.h"

namespace distill::models {
namespace {

// Some virtual machines announce AMX and fault on it: oneDNN's bf16 products then end in SIGILL. oneDNN reads this at
// its first use.
[[maybe_unused]] const int without_amx = ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", /*overwrite=*/0);

} // namespace

at::Device test_device() {
  return at::kCPU;
}

} // namespace distill::models
