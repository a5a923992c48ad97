#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/device/host_slab.h"
#include "trainer/models/layout.h"
#include "trainer/models/weight_source.h"
#include "trainer/sharding/gradient_slots.h"
#include "trainer/sharding/shard_range.h"
#include "trainer/sharding/weight_slots.h"

namespace distill::sharding {

// One unit's state on this rank. All tensors are flat, [shard.numel].
struct UnitShard {
  models::UnitLayout layout;
  ShardRange shard;
  // Compute dtype. Undefined where gathers round the master weights (a trainable model with slots and another compute
  // dtype than fp32).
  at::Tensor weights;
  at::Tensor master; // fp32, what the optimizer updates; the same tensor as `weights` in fp32; undefined: frozen
  // fp32, the sum over micro-batches. Exists from the unit's first backward pass of a step to drop_gradients(), or
  // where the update overlaps with the next step, to the unit's next use: activations and the loss head's buffers lie
  // in the same memory at other times.
  at::Tensor gradient;
};

// A whole unit's flat fp32 gradient, to accumulate into.
struct UnitGradient {
  at::Tensor flat;
  bool is_new = false; // all but the matrices is zero; the matrices hold anything, and are to be written
};

// How the gradients of a step's micro-batches are added up over ranks.
enum class Accumulation {
  kReduceEach, // every micro-batch is reduced into the shards: memory stays flat
  kKeepFull, // whole fp32 gradients stay on every rank and are reduced once: 4 bytes per parameter, communication once
             // a step
};

struct ShardOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  bool trainable = false;
  int64_t rank = 0;
  int64_t world_size = 1;
  std::shared_ptr<device::HostSlab> host_state; // where master weights and moments lie; null: on the device
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

  // From now on whole units are gathered into `weights`, and gradients are reduced through `gradients`, null for a
  // frozen model. Both outlive this.
  void use_slots(WeightSlots* weights, GradientSlots* gradients, Accumulation accumulation);
  // Adds what this model's units need to a plan of slots.
  void add_to_plan(SlotPlan& weights) const;

  // The whole unit's flat weights, compute dtype. Valid until release().
  at::Tensor weights(int64_t index);
  void release(int64_t index);
  // Released, and not needed again soon: its slot may give its memory back.
  void retire(int64_t index);
  // Starts gathering a unit that will be needed soon.
  void prefetch(int64_t index);
  // Number of blocks to prefetch.
  int64_t prefetch_depth() const {
    return weight_slots_ != nullptr ? weight_slots_->prefetch_depth() : 0;
  }
  // The whole unit's flat fp32 gradient. reduce() hands it over when the unit's backward is done; `last`: in the step's
  // last micro-batch.
  UnitGradient gradient(int64_t index);
  void reduce(int64_t index, bool last);
  // After the last backward pass: the compute stream waits until the gradient shards hold the sums over all ranks, and
  // until no gather reads the master weights.
  void finish_gradients();
  // After the optimizer: frees the gradient shards, except those of units whose update is under way.
  void drop_gradients();

  // An optimizer on a stream of its own has queued the unit's new weights there, the current stream. The compute stream
  // goes on: where the unit is asked for next, it waits for them, and only then is the gradient freed.
  void unit_updated(int64_t index);
  // The compute stream waits for the updates of all units that were not asked for since.
  void finish_updates();
  // Called around the waits for updates.
  void observe_updates(WaitObserver observer) {
    update_observer_ = std::move(observer);
  }

  // Zeros like the unit's master weights, where they are: for the optimizer's moments.
  at::Tensor zeros_beside_master(int64_t index) const;

  // The whole unit's fp32 master weights; all ranks of the shard axis call it together. Null: this rank holds it all.
  at::Tensor gather_master(int64_t index, Communicator* shard_axis) const;

  // After the master weights changed: makes the compute copies anew.
  void refresh_weights();
  // After the compute copies changed too.
  void weights_changed();

 private:
  UnitKey key(int64_t index) const {
    return {this, index};
  }
  SlotSize slot_size(int64_t index) const;
  at::Tensor zeros_of_state(int64_t numel) const; // fp32, on the device or in host memory
  UnitSource source(int64_t index) const;
  at::Tensor new_gradient_shard(const UnitShard& unit) const; // not initialised
  void finish_update(int64_t index);
  // Zeroes what no matrix product writes: vectors, alignment gaps, the padded tail.
  void zero_all_but_matrices(int64_t index, at::Tensor flat) const;

  models::ModelConfig config_;
  ShardOptions options_;
  struct Update {
    Fence done;
    bool pending = false; // the compute stream has not waited for it

    explicit Update(at::Device device) : done(device) {}
  };
  std::vector<UnitShard> units_;
  std::vector<Update> updates_; // of the units
  WaitObserver update_observer_;
  WeightSlots* weight_slots_ = nullptr;
  GradientSlots* gradient_slots_ = nullptr;
  Accumulation accumulation_ = Accumulation::kReduceEach;
};

} // namespace distill::sharding
