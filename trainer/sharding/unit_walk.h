#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/model_config.h"

namespace distill::sharding {

// A forward pass over a model's units, whole, in forward order: embedding, each block, final norm. This is the one loop
// over them; training, evaluation, a capture and the float8 gate decide where a unit comes from and how a block runs. N
// tokens, H hidden, V vocabulary.
class UnitWalk {
 public:
  virtual ~UnitWalk() = default;

  // Returns the final hidden states [N, H], after the last norm, of each of the batches `tokens` (int64 [N]). Every
  // unit is asked for once and given back before the next one is asked for.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& tokens);

 protected:
  virtual const models::ModelConfig& config() const = 0;
  int64_t num_blocks() const {
    return config().num_layers();
  }
  // [V, H]
  virtual at::Tensor begin_embedding() = 0;
  virtual void end_embedding() = 0;
  virtual void begin_block(int64_t block) = 0;
  // Returns the block's output; x_NH: its input.
  virtual at::Tensor run_block(int64_t block, size_t batch, const at::Tensor& x_NH) = 0;
  virtual void end_block(int64_t block) = 0;
  // Returns the final norm's weight [H].
  virtual at::Tensor begin_head() = 0;
  virtual at::Tensor run_norm(const at::Tensor& norm_H, const at::Tensor& x_NH) = 0;
  virtual void end_head() = 0;
};

} // namespace distill::sharding
