#include "trainer/optim/grad_norm.h"

namespace distill::optim {

at::Tensor grad_norm_square(const sharding::ModelShards& model) {
  std::vector<at::Tensor> norms;
  norms.reserve(static_cast<size_t>(model.num_units()));
  for (int64_t i = 0; i < model.num_units(); ++i) {
    norms.push_back(at::linalg_vector_norm(model.unit(i).gradient));
  }
  // The square of an fp32 number is exact in fp64: one rank's norm comes back as it was.
  return at::linalg_vector_norm(at::stack(norms)).to(at::kDouble).square().reshape({1});
}

GradNorm grad_norm_of_square(const at::Tensor& square, double max_norm) {
  GradNorm result;
  result.norm = square.sqrt().to(at::kFloat);
  result.found_inf = at::isfinite(result.norm).logical_not().to(at::kFloat);
  result.grad_scale = max_norm > 0 ? at::clamp_min(result.norm / max_norm, 1.0) : at::ones_like(result.norm);
  return result;
}

} // namespace distill::optim
