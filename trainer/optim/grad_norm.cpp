#include "trainer/optim/grad_norm.h"

#include "trainer/optim/square_sum.h"

namespace distill::optim {

at::Tensor grad_norm_square(const sharding::ModelShards& model) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(static_cast<size_t>(model.num_units()));
  for (int64_t i = 0; i < model.num_units(); ++i) {
    if (model.has(i)) {
      gradients.push_back(model.unit(i).gradient);
    }
  }
  return square_sum(gradients);
}

GradNorm grad_norm_of_square(const at::Tensor& square, double max_norm) {
  GradNorm result;
  result.norm = square.sqrt().to(at::kFloat);
  result.found_inf = at::isfinite(result.norm).logical_not().to(at::kFloat);
  result.grad_scale = max_norm > 0 ? at::clamp_min(result.norm / max_norm, 1.0) : at::ones_like(result.norm);
  return result;
}

} // namespace distill::optim
