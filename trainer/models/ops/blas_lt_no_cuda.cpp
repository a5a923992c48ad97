#include "trainer/models/ops/blas_lt.h"

namespace distill::models {

bool blas_lt_scales_rows(at::Device) {
  return false;
}

void blas_lt_product_add(const BlasLtOperand&, const BlasLtOperand&, const at::Tensor&, at::Tensor&) {
  TORCH_CHECK(false, "this build of distill has no cuBLASLt: configure it with DISTILL_CUDA=ON");
}

} // namespace distill::models
