#include "losses/matmul.h"

#include <ATen/Functions.h>

#include "losses/matmul_tuned.h"

namespace distill::losses {

void matrix_product_out(
    const at::Tensor& out_MN, const at::Tensor& a_MK, const at::Tensor& b_KN, double alpha, const at::Tensor& added_MN,
    double beta) {
  if (out_MN.is_cuda() && a_MK.scalar_type() == at::kBFloat16 &&
      tuned_matmul({out_MN, a_MK, b_KN, added_MN, alpha, added_MN.defined() ? beta : 0})) {
    return;
  }
  at::Tensor out = out_MN;
  const bool same_type = out.scalar_type() == a_MK.scalar_type();
  if (!added_MN.defined() && alpha == 1) {
    same_type ? at::mm_out(out, a_MK, b_KN) : at::mm_out(out, a_MK, b_KN, out.scalar_type());
    return;
  }
  const at::Tensor& added = added_MN.defined() ? added_MN : out;
  const double factor = added_MN.defined() ? beta : 0; // 0: never read
  same_type ? at::addmm_out(out, added, a_MK, b_KN, factor, alpha)
            : at::addmm_out(out, added, a_MK, b_KN, out.scalar_type(), factor, alpha);
}

at::Tensor matrix_product(const at::Tensor& a_MK, const at::Tensor& b_KN, const at::Tensor& added_MN) {
  at::Tensor out = at::empty({a_MK.size(0), b_KN.size(1)}, a_MK.options());
  matrix_product_out(out, a_MK, b_KN, 1, added_MN);
  return out;
}

} // namespace distill::losses
