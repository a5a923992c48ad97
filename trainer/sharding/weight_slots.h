#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "trainer/sharding/communicator.h"
#include "trainer/sharding/slot_checks.h"
#include "trainer/sharding/slot_events.h"
#include "trainer/sharding/slots.h"
#include "trainer/sharding/wait_observer.h"

namespace distill::sharding {

// Where a unit's gathered weights come from.
struct UnitSource {
  UnitKey key;
  SlotSize size = SlotSize::kBlock;
  at::Tensor shard; // this rank's part, flat; rounded to `dtype` on its way into the slot
  at::ScalarType dtype = at::kFloat; // of the whole unit
  const Fence* updated = nullptr; // the shard's newest update, if on a stream of its own; null: invalidate() orders it
};

// Gathered weights. A collective writes straight into a slot; parameters are views of it. Slots of blocks are fixed
// buffers for the life of the process. A large slot takes its memory from the compute stream's allocator for the gather
// and gives it back when the unit is retired, so that tensors with other lifetimes can share it. All functions are
// called from the compute thread, with the compute stream current.
class WeightSlots {
 public:
  // `checks` null: no checksums.
  WeightSlots(at::Device device, Communicator& gather, const SlotPlan& plan, SlotChecks* checks = nullptr);

  // Starts the all-gather, unless the unit is already in a slot or every slot is in use or holds a prefetched unit.
  void prefetch(const UnitSource& unit);
  // The whole unit [world_size * shard.numel()]; the compute stream waits for its gather. Stays in its slot until
  // release(), and after that until the slot is needed or the unit is retired.
  at::Tensor acquire(const UnitSource& unit);
  void release(UnitKey key);
  // The unit, already released, will not be used for long: a large slot frees its memory. Does nothing if no slot holds
  // the unit.
  void retire(UnitKey key);
  // Call before the model's shards change: the compute stream waits for every gather that reads them.
  void wait_for_gathers(const void* model);
  // Call when the changes have been queued: the gathered units of this model are out of date, and later gathers wait
  // for the changes.
  void invalidate(const void* model);

  // The ranks that units are gathered from.
  Communicator& shard_axis() {
    return gather_;
  }
  // Number of blocks that can be prefetched while one block is in use.
  int64_t prefetch_depth() const {
    return static_cast<int64_t>(block_slots_.size()) - 1;
  }
  void observe_waits(WaitObserver observer) {
    observer_ = std::move(observer);
  }

 private:
  struct Slot {
    at::Tensor bytes; // uint8; a large slot's is undefined while it is empty
    at::Tensor whole; // the part in use, in the unit's dtype
    UnitKey key;
    bool in_use = false;
    uint64_t last_use = 0;
    SlotEvents events;

    Slot(at::Tensor buffer, at::Device device) : bytes(std::move(buffer)), events(device) {}
  };
  Slot* find(UnitKey key);
  // The least recently used free slot; null if there is none. With `evict_prefetched`, a slot whose prefetched unit has
  // not been used yet counts as free.
  Slot* free_slot(SlotSize size, bool evict_prefetched);
  void gather(Slot& slot, const UnitSource& unit);
  void give_back(Slot& slot);

  Communicator& gather_;
  at::Device device_;
  SlotChecks* checks_;
  SideStream stream_;
  Fence allocated_; // kernels that used a large slot's memory before are done
  // For the shards of each model: the last change, and the last gather that read them.
  struct ShardFences {
    Fence changed, gathered;
  };
  ShardFences& shards_of(const void* model);
  std::map<const void*, ShardFences> shards_;
  std::vector<Slot> block_slots_, large_slots_;
  uint64_t clock_ = 0;
  WaitObserver observer_;
};

} // namespace distill::sharding
