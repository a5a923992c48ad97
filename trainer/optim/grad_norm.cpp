#include "trainer/optim/grad_norm.h"

namespace distill::optim {

GradNorm measure_grad_norm(const sharding::ModelShards& model, double max_norm, sharding::Communicator* shard_axis) {
  std::vector<at::Tensor> norms;
  for (int64_t i = 0; i < model.num_units(); ++i) {
    norms.push_back(at::linalg_vector_norm(model.unit(i).gradient));
  }
  GradNorm result;
  result.norm = at::linalg_vector_norm(at::stack(norms)).reshape({1});
  if (shard_axis != nullptr) {
    result.norm = result.norm.square();
    shard_axis->all_reduce(result.norm);
    result.norm.sqrt_();
  }
  result.found_inf = at::isfinite(result.norm).logical_not().to(at::kFloat);
  result.grad_scale = max_norm > 0 ? at::clamp_min(result.norm / max_norm, 1.0) : at::ones_like(result.norm);
  return result;
}

} // namespace distill::optim
