#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "trainer/device/memory_park.h"
#include "trainer/models/block.h"
#include "trainer/models/layout.h"
#include "trainer/models/ops/rounded_sum.h"
#include "trainer/models/units.h"
#include "trainer/models/weight_source.h"
#include "trainer/sharding/float8_weights.h"
#include "trainer/sharding/gradient_slots.h"
#include "trainer/sharding/peer_memory.h"
#include "trainer/sharding/shard_range.h"
#include "trainer/sharding/state_memory.h"
#include "trainer/sharding/weight_slots.h"

namespace distill::sharding {

// The state of a unit on this rank. All tensors are flat, [shard.numel].
struct UnitShard {
  models::UnitLayout layout;
  ShardRange shard;
  // The shard in the compute dtype; the bytes of a packed unit (trainer/models/packed_layout.h) or of a unit that is
  // trained in float8 (float8_weights.h). It is undefined if gathers round the master weights instead (a trainable
  // model with slots, whose compute dtype is not fp32, without peer memory and with the unit's state on the device).
  at::Tensor weights;
  // With peer memory, `weights` of every rank of the shard axis, this rank's included; this rank only reads those of
  // the others.
  std::vector<at::Tensor> peer_weights;
  at::Tensor master; // fp32, updated by the optimizer; the same tensor as `weights` in fp32; undefined: frozen
  // The sum over micro-batches, in ShardOptions::gradient_dtype. Allocated in the unit's first backward pass of a step;
  // freed by drop_gradients(), or, if the update overlaps with the next step, at the unit's next use. At other times
  // activations and the loss head's buffers can use the same memory.
  at::Tensor gradient;
};

// A whole unit's flat fp32 gradient, to accumulate into.
struct UnitGradient {
  at::Tensor flat;
  bool is_new = false; // matrices are uninitialised, to be overwritten; everything else is zero
};

// The way in which the gradients of a step's micro-batches are summed over ranks.
enum class Accumulation {
  kReduceEach, // every micro-batch is reduced into the shards: memory stays flat
  kKeepFull, // whole fp32 gradients stay on every rank and are reduced once: 4 bytes per parameter, communication once
             // a step
};

// What an optimizer does for single units while the passes are queued, with the compute stream current. The host
// queues no more than is needed soon: a stream takes about a thousand entries before the host has to wait.
struct OptimizerHooks {
  // The unit is needed next, and its update is not queued yet.
  std::function<void(int64_t unit)> queue_update = [](int64_t) {};
  // The unit's backward pass of the step's last micro-batch has been queued.
  std::function<void(int64_t unit)> backward_is_queued = [](int64_t) {};
  // The unit's gradient shard of this step is complete on the compute stream.
  std::function<void(int64_t unit)> gradient_is_final = [](int64_t) {};
};

struct ShardOptions {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
  bool trainable = false;
  int64_t rank = 0;
  int64_t world_size = 1;
  StateMemory state; // of the optimizer: master weights and moments
  // Of gradient shards: fp32, or bf16, in which sums are rounded stochastically. The gradients of whole units are fp32.
  at::ScalarType gradient_dtype = at::kFloat;
  bool may_leave_float8 = false; // slots must hold units in the compute dtype too
  PeerMemory* peers = nullptr; // of the shard axis: weights lie there, and gathers copy them; null: collectives gather
  Communicator* shard_axis = nullptr; // load() is then called by all ranks, which share the scales of packed units
};

// The units of one model, sharded. The passes over the model ask it for whole units and give them back:
// block_params(u) ... release(u) around every use, gradient(u) ... reduce(u) around every unit's backward.
// On one process a shard is the whole unit, and gathering and reducing are the identity.
//
// Of a model with an adapter (models/adapter.h) these units have what is trained alone, and some have nothing; the
// frozen weights are those of another model, the base, which several may have in common. Whoever asks for parameters
// gets both.
class ModelShards {
 public:
  // `base`: the same model without its adapter, frozen; null if the model has none.
  ModelShards(models::ModelConfig config, const ShardOptions& options, std::shared_ptr<ModelShards> base = nullptr);

  // Reads this rank's part of every unit. Without ShardOptions::shard_axis, a rank that holds scales of a packed unit
  // reads all of the rows that they belong to.
  // `loaded`: told of the bytes of each unit that has been read, as they are stored on the device.
  void load(const models::WeightSource& source, const std::function<void(int64_t bytes)>& loaded = {});
  // Counts the bytes of this rank's weights, as gathers read them.
  int64_t bytes() const;

  const models::ModelConfig& config() const {
    return config_;
  }
  // The model whose weights are frozen; null: this model has all of its weights.
  const std::shared_ptr<ModelShards>& base() const {
    return base_;
  }
  // Whether the unit has parameters of its own, in a model that is trained: whether it is.
  bool has(int64_t index) const {
    return !units_[index].layout.params.empty();
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

  // Gathers whole units into `weights` from now on, and reduces gradients through `gradients`, null for a frozen model.
  // Both must outlive this object.
  void use_slots(WeightSlots* weights, GradientSlots* gradients, Accumulation accumulation);
  // Raises the slot sizes of a plan to those that this model's units need.
  void add_to_plan(SlotPlan& weights) const;

  // The unit's key among the units of all models.
  UnitKey key(int64_t index) const {
    return {this, index};
  }
  // Null on one process.
  WeightSlots* weight_slots() const {
    return weight_slots_;
  }

  // The whole unit's flat weights, in the compute dtype or packed, without those of the base. Valid until release().
  at::Tensor weights(int64_t index);
  // Adds this rank's tensors of all units, with what they are, those of the base included.
  void add_state(std::vector<device::MemoryPark::Item>& state) const;
  // Returns the weights of a decoder block as its parameters, in whatever form it computes. Valid until release().
  models::BlockParams block_params(int64_t index);
  // The token embedding [V, H], the final norm [H] and the lm_head [V, H]. Valid until release() of their unit.
  at::Tensor embedding_weight() {
    return parameter(embedding_unit(), "embedding");
  }
  at::Tensor final_norm_weight() {
    return parameter(head_unit(), "final_norm");
  }
  at::Tensor lm_head_weight() {
    return parameter(head_unit(), models::lm_head_param(units_[head_unit()].layout.kind));
  }
  void release(int64_t index);
  // The unit has been released and is not needed again soon: its slot may free its memory.
  void retire(int64_t index);
  // Starts gathering a unit that will be needed soon.
  void prefetch(int64_t index);
  // Number of blocks to prefetch.
  int64_t prefetch_depth() const {
    return weight_slots_ != nullptr ? weight_slots_->prefetch_depth() : 0;
  }
  // Number of the step whose gradients come next, since the start of the run: gradient shards in bf16 are rounded with
  // its random numbers.
  void begin_step(int64_t step) {
    step_ = step;
  }
  // The whole unit's flat fp32 gradient. reduce() hands it over when the unit's backward is done; `last`: in the step's
  // last micro-batch.
  UnitGradient gradient(int64_t index);
  // On one process it only rounds gradients that are stored in bf16. With kKeepFull it does nothing before the last
  // micro-batch: the sum then stays in the whole gradient.
  void reduce(int64_t index, bool last);
  // Call this after the last backward pass. The compute stream waits until the gradient shards hold the sums over all
  // ranks, and until none of this rank's gathers reads the shards any more. With peer memory the caller then lets all
  // ranks of the shard axis meet on the compute stream before the update: only after that does no rank read this rank's
  // weights.
  void finish_gradients();
  // Frees the gradient shards after the optimizer's update, except those of units whose update is under way.
  void drop_gradients();

  // An optimizer that runs on streams of its own calls this for each unit that it will update there. It calls
  // unit_updated() with the update's stream current when it has queued the unit's update, at the latest when
  // OptimizerHooks::queue_update is called. The compute stream waits for the update at the unit's next use, and the
  // gradient is freed then.
  void update_later(int64_t index) {
    updates_[index].pending = true;
  }
  void unit_updated(int64_t index);
  void hook_optimizer(OptimizerHooks hooks) {
    hooks_ = std::move(hooks);
  }
  // The compute stream waits for all updates that it has not waited for yet.
  void finish_updates();
  // The observer is called around the waits for updates.
  void observe_updates(WaitObserver observer) {
    update_observer_ = std::move(observer);
  }

  // Whether the unit's master weights are in host memory, and so its moments.
  bool state_on_host(int64_t index) const {
    return has(index) && models::is_on_host(options_.state.place(index));
  }
  // Whether the host updates them there.
  bool updated_by_cpu(int64_t index) const {
    return has(index) && options_.state.place(index) == models::StatePlace::kCpu;
  }
  // Returns zeros of the unit's shard where its master weights are, for the optimizer's moments.
  at::Tensor zeros_of_state(int64_t index, at::ScalarType dtype) const;

  // The whole unit's fp32 master weights; all ranks of the shard axis call it together. `shard_axis` null: this rank
  // holds the whole unit.
  at::Tensor gather_master(int64_t index, Communicator* shard_axis) const;

  // Rounds the unit's master weights into its compute copy, if it has one that is not in float8.
  void round_master(int64_t index);
  // Call after the master weights changed: updates the compute copies.
  void refresh_weights();
  // Call if the compute copies have been updated too, but for those in float8.
  void weights_changed();

  // The weights of a model that is trained in float8; null: it is not.
  Float8Weights* float8() {
    return float8_.get();
  }
  // A model that is trained in float8 computes in the compute dtype until it is called with false: its units are then
  // rounded from the master weights whenever they are needed. No unit may be in use.
  void leave_float8(bool leave);

 private:
  // The dtype of a unit's flat buffer.
  at::ScalarType flat_dtype(int64_t index) const {
    return units_[index].layout.packed() || in_float8(index) ? at::kByte : options_.compute_dtype;
  }
  bool in_float8(int64_t index) const {
    return float8_ != nullptr && !left_float8_ && float8_->has(index);
  }
  int64_t element_size(int64_t index) const {
    return static_cast<int64_t>(c10::elementSize(flat_dtype(index)));
  }
  int64_t shard_bytes(int64_t index) const {
    return units_[index].shard.numel * element_size(index);
  }
  void refresh_float8();
  SlotSize slot_size(int64_t index) const;
  // The unit's parameter of this name, of this model or of its base.
  at::Tensor parameter(int64_t index, const char* name);
  // Whether a unit has parameters that the base has.
  bool needs_base(int64_t index) const;
  // Makes every unit's weights, zeros, in memory of this rank alone or in peer memory.
  void allocate_weights();
  UnitSource source(int64_t index);
  // Makes the optimizer queue the unit's pending update.
  void queue_update(int64_t index);
  at::Tensor new_gradient_shard(const UnitShard& unit) const; // not initialised
  bool rounds_gradients() const {
    return options_.gradient_dtype != at::kFloat;
  }
  // What the next sum of a unit's gradient shard is rounded with.
  models::RoundingKey next_rounding(int64_t index);
  void finish_update(int64_t index);
  // Zeroes the elements that no matrix product writes: vectors, alignment gaps, the padded tail.
  void zero_all_but_matrices(int64_t index, at::Tensor flat) const;

  models::ModelConfig config_;
  ShardOptions options_;
  std::shared_ptr<ModelShards> base_;
  struct Update {
    Fence done;
    bool pending = false; // the compute stream has not waited for it

    explicit Update(at::Device device) : done(device) {}
  };
  std::vector<UnitShard> units_;
  std::vector<at::Tensor> whole_gradients_; // of each unit, on one process that rounds them; undefined: it is rounded
  std::vector<int64_t> sums_; // of each unit: the micro-batches in its gradient shard
  int64_t step_ = 0;
  std::unique_ptr<Float8Weights> float8_; // null: the model is frozen, or trained in the compute dtype
  bool left_float8_ = false;
  std::vector<Update> updates_; // one for each unit
  WaitObserver update_observer_;
  OptimizerHooks hooks_;
  WeightSlots* weight_slots_ = nullptr;
  GradientSlots* gradient_slots_ = nullptr;
  Accumulation accumulation_ = Accumulation::kReduceEach;
};

} // namespace distill::sharding
