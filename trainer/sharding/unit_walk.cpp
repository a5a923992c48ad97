#include "trainer/sharding/unit_walk.h"

#include "trainer/models/ops/embedding.h"

namespace distill::sharding {

std::vector<at::Tensor> UnitWalk::run(const std::vector<at::Tensor>& tokens) {
  std::vector<at::Tensor> states; // of each batch
  { // a scope of its own: views of a unit keep its memory
    const at::Tensor weight_VH = begin_embedding();
    for (const at::Tensor& tokens_N : tokens) {
      states.push_back(models::embedding_forward(tokens_N, weight_VH, config().embedding_scale));
    }
    end_embedding();
  }
  for (int64_t block = 0; block < num_blocks(); ++block) {
    begin_block(block);
    for (size_t batch = 0; batch < states.size(); ++batch) {
      states[batch] = run_block(block, batch, states[batch]);
    }
    end_block(block);
  }
  const at::Tensor norm_H = begin_head();
  for (at::Tensor& x_NH : states) {
    x_NH = run_norm(norm_H, x_NH);
  }
  end_head();
  return states;
}

} // namespace distill::sharding
