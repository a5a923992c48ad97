#include "trainer/models/ops/blas_lt.h"

namespace distill::models {

bool blas_lt_scales_rows(at::Device) {
  return false;
}

namespace {

constexpr const char* kNoCuda = "this build of distill has no cuBLASLt: configure it with DISTILL_CUDA=ON";

} // namespace

void blas_lt_product_add(const BlasLtOperand&, const BlasLtOperand&, const at::Tensor&, at::Tensor&) {
  TORCH_CHECK(false, kNoCuda);
}

void blas_lt_float8_product(const BlasLtOperand&, const BlasLtOperand&, at::Tensor&, bool, bool) {
  TORCH_CHECK(false, kNoCuda);
}

} // namespace distill::models
