#pragma once

#include <list>
#include <memory>

#include "trainer/models/layout.h"
#include "trainer/plan/run_shape.h"
#include "trainer/plan/timeline.h"

// The allocations of trainer/sharding: shards, slots of gathered weights, gradients on their way. Each class stands for
// the one of that name there and makes the same decisions.
namespace distill::plan {

struct SlotKey {
  const void* model = nullptr;
  int64_t unit = -1;

  bool operator==(const SlotKey&) const = default;
};

// sharding::WeightSlots.
class WeightSlotsModel {
 public:
  WeightSlotsModel(Timeline& timeline, int64_t block_slots, int64_t block_bytes);
  void prefetch(SlotKey key, bool large, int64_t bytes);
  void acquire(SlotKey key, bool large, int64_t bytes);
  void release(SlotKey key);
  void retire(SlotKey key);
  void invalidate(const void* model);
  int64_t prefetch_depth() const {
    return static_cast<int64_t>(block_slots_.size()) - 1;
  }

 private:
  struct Slot {
    Buffer buffer;
    int64_t bytes = 0;
    SlotKey key;
    bool in_use = false;
    bool unread = false;
    uint64_t last_use = 0;
  };
  Slot* find(SlotKey key);
  Slot* free_slot(bool large, bool ahead);
  void gather(Slot& slot, SlotKey key, bool large, int64_t bytes);
  static void give_back(Slot& slot);

  Timeline& timeline_;
  std::vector<Slot> block_slots_, large_slots_;
  uint64_t clock_ = 0;
};

// sharding::GradientSlots.
class GradientSlotsModel {
 public:
  GradientSlotsModel(Timeline& timeline, bool bf16, bool cuda) : timeline_(timeline), bf16_(bf16), cuda_(cuda) {}
  void acquire(SlotKey key, bool large, int64_t numel);
  void reduce(SlotKey key, int64_t shard_numel, bool accumulate);
  void finish();

 private:
  struct Slot {
    SlotKey key;
    bool large = false;
    bool reducing = false;
    int64_t order = 0; // among reductions
    int64_t numel = 0;
    Buffer gradient, staged, low_precision;
  };
  Slot* find_open(SlotKey key);
  void make_room(bool large);
  void leave_reducing(bool large, int64_t limit);

  Timeline& timeline_;
  bool bf16_;
  bool cuda_;
  int64_t reductions_ = 0;
  std::list<Slot> slots_;
};

// sharding::ModelShards.
class UnitsModel {
 public:
  UnitsModel(
      Timeline& timeline, const RunShape& shape, const models::ModelConfig& config, at::ScalarType dtype,
      int64_t shard_size, bool trainable);

  // The shards, in the order in which the model's constructor makes them.
  void load();
  void use_slots(WeightSlotsModel* weights, GradientSlotsModel* gradients);
  int64_t largest_block_bytes() const; // gathered

  int64_t num_units() const {
    return static_cast<int64_t>(units_.size());
  }
  int64_t block_unit(int64_t block) const {
    return block + 1;
  }
  int64_t embedding_unit() const {
    return 0;
  }
  int64_t head_unit() const {
    return config_.tie_word_embeddings ? 0 : num_units() - 1;
  }
  int64_t shard_numel(int64_t unit) const {
    return units_[unit].shard;
  }
  int64_t prefetch_depth() const {
    return weight_slots_ != nullptr ? weight_slots_->prefetch_depth() : 0;
  }

  void weights(int64_t unit);
  void release(int64_t unit);
  void retire(int64_t unit);
  void prefetch(int64_t unit);
  void gradient(int64_t unit);
  void reduce(int64_t unit, bool last);
  void finish_gradients();
  void drop_gradients();
  void units_updated(); // beside the next step
  void weights_changed();

  // As the pass over a block does before it computes.
  void prefetch_after(int64_t block, UnitsModel* next);
  void prefetch_before(int64_t block);
  void prefetch_first();

 private:
  struct Unit {
    int64_t shard = 0, whole = 0; // elements
    bool large = false;
    bool updating = false; // until it is asked for next
    Buffer weights, master, gradient;
  };
  SlotKey key(int64_t unit) const {
    return {this, unit};
  }

  Timeline& timeline_;
  const RunShape& shape_;
  const models::ModelConfig& config_;
  int64_t element_;
  bool trainable_;
  bool separate_master_;
  std::vector<Unit> units_;
  WeightSlotsModel* weight_slots_ = nullptr;
  GradientSlotsModel* gradient_slots_ = nullptr;
};

} // namespace distill::plan
