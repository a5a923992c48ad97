#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/layout.h"
#include "trainer/models/weights.h"
#include "trainer/sharding/shard_range.h"
#include "trainer/sharding/slots.h"

namespace distill::sharding {

// One unit's state on this rank. All tensors are flat, [shard.numel].
struct UnitShard {
  models::UnitLayout layout;
  ShardRange shard;
  at::Tensor weights; // compute dtype: what is gathered
  at::Tensor
      master; // fp32, what the optimizer updates; the same tensor as `weights` when that is fp32; undefined: frozen
  at::Tensor gradient; // fp32, accumulated over micro-batches; undefined: frozen
  bool has_gradient = false; // since zero_gradients(); with slots, the first reduction of a step overwrites
};

struct ShardOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  bool trainable = false;
  int64_t rank = 0;
  int64_t world_size = 1;
};

// The units of one model, sharded. The passes over the model ask it for whole units and give them back:
// weights(u) ... release(u) around every use, gradient(u) ... reduce(u) around every unit's backward.
// On one process a shard is the whole unit, and gathering and reducing are the identity.
class ModelShards {
 public:
  ModelShards(models::ModelConfig config, const ShardOptions& options);

  // Reads this rank's part of every unit.
  void load(const models::WeightSource& source);

  const models::ModelConfig& config() const {
    return config_;
  }
  bool trainable() const {
    return options_.trainable;
  }
  const ShardOptions& options() const {
    return options_;
  }
  int64_t num_units() const {
    return static_cast<int64_t>(units_.size());
  }
  int64_t num_parameters() const; // without padding
  UnitShard& unit(int64_t index) {
    return units_[index];
  }
  const UnitShard& unit(int64_t index) const {
    return units_[index];
  }
  // Index of the unit of a decoder block, of the embedding, and of the final norm and lm_head.
  int64_t block_unit(int64_t block) const {
    return block + 1;
  }
  int64_t embedding_unit() const {
    return 0;
  }
  int64_t head_unit() const {
    return config_.tie_word_embeddings ? 0 : num_units() - 1;
  }

  // From now on whole units are gathered into, and gradients are reduced from, these slots. Null: one process.
  // Both outlive this.
  void use_slots(WeightSlots* weights, GradientSlots* gradients) {
    weight_slots_ = weights;
    gradient_slots_ = gradients;
  }
  // Adds what this model's units need to a plan of slots.
  void add_to_plan(SlotPlan& weights, SlotPlan& gradients) const;

  // The whole unit's flat weights, compute dtype. Valid until release().
  at::Tensor weights(int64_t index);
  void release(int64_t index);
  // Starts gathering a unit that will be needed soon.
  void prefetch(int64_t index);
  // The whole unit's flat fp32 gradient, to accumulate into. reduce() hands it over when the unit's backward is done.
  at::Tensor gradient(int64_t index);
  void reduce(int64_t index);
  // After the last backward pass: the compute stream waits until the gradient shards hold the sums over all ranks.
  void finish_gradients();

  // The whole unit's fp32 master weights; all ranks of the shard axis call it together. Null: this rank holds it all.
  at::Tensor gather_master(int64_t index, Communicator* shard_axis) const;

  // Before the first backward pass of a step.
  void zero_gradients();
  // After the master weights changed: makes the compute copies anew.
  void refresh_weights();
  // After the compute copies changed too.
  void weights_changed();

 private:
  UnitKey key(int64_t index) const {
    return {this, index};
  }
  SlotSize slot_size(int64_t index) const;

  models::ModelConfig config_;
  ShardOptions options_;
  std::vector<UnitShard> units_;
  WeightSlots* weight_slots_ = nullptr;
  GradientSlots* gradient_slots_ = nullptr;
};

} // namespace distill::sharding
