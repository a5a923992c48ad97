#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <set>
#include <vector>

#include "trainer/device/memory_park.h"
#include "trainer/sharding/communicator.h"
#include "trainer/sharding/slot_checks.h"
#include "trainer/sharding/slot_events.h"
#include "trainer/sharding/slots.h"
#include "trainer/sharding/wait_observer.h"

namespace distill::sharding {

// The place from which a unit's weights are gathered.
struct UnitSource {
  UnitKey key;
  SlotSize size = SlotSize::kBlock;
  at::Tensor shard; // this rank's part, flat; rounded to `dtype` on its way into the slot
  at::ScalarType dtype = at::kFloat; // of the whole unit
  // Every rank's part in peer memory, in `dtype`, which the gather copies; null: a collective gathers `shard`.
  const std::vector<at::Tensor>* peers = nullptr;
  const Fence* updated = nullptr; // the shard's newest update, if on a stream of its own; null: invalidate() orders it
};

// Gathers since the start of the process.
struct GatherCount {
  int64_t units = 0;
  int64_t bytes = 0; // of the whole units
};

// The slots of gathered weights. A collective, or copies from peer memory, write straight into a slot; parameters are
// views of it. Slots of blocks are fixed buffers for the life of the process. A large slot takes its memory from the
// compute stream's allocator for the gather and gives it back when the unit is retired, so that tensors with other
// lifetimes can share it. All functions are called from the compute thread, with the compute stream current.
//
// A new unit takes the free slot whose unit is needed farthest in the future (Belady's rule), as far as expect() has
// announced it; of units whose next use is not known, it takes that of the one that was used least recently. All ranks
// take the same decisions: they depend only on the order of the calls.
//
// A unit that two models' passes use at once, as where one frozen model is the teacher and the base of the student's
// adapters, is acquired and released by both, and stays until the last of them gives it back.
//
// With peer memory, a rank copies the other ranks' shards itself, so it must know that they are written, and the others
// that it has read them. Written: before the first copy of a model (of a unit, where units are updated one by one)
// since invalidate(), all ranks meet in an all-reduce of one number on the gather's stream. Read: see
// wait_for_gathers().
class WeightSlots {
 public:
  // `checks` null: no checksums.
  WeightSlots(at::Device device, Communicator& gather, const SlotPlan& plan, SlotChecks* checks = nullptr);

  // Starts the gather, unless the unit is already in a slot or every slot is in use or holds a unit that is needed
  // before this one.
  void prefetch(const UnitSource& unit);
  // Returns the whole unit [world_size * shard.numel()]; the compute stream waits for its gather. The unit stays in its
  // slot until release(), and after that until the slot is needed or the unit is retired.
  at::Tensor acquire(const UnitSource& unit);
  void release(UnitKey key);
  // Announces that the unit, already released, will not be used for long: a large slot frees its memory. Does nothing
  // if no slot holds the unit, or if it has been acquired once more than released.
  void retire(UnitKey key);
  // Announces the blocks that will be used from now on, in this order, and forgets what was announced before. Uses that
  // turn out otherwise cost gathers and are no error.
  void expect(std::vector<UnitKey> uses);

  // Call this before the model's shards change: the compute stream waits for every gather of this rank that reads them.
  // With peer memory the other ranks read this rank's shards too: they may change once all ranks have made this call
  // and met in a collective on the compute stream after it.
  void wait_for_gathers(const void* model);
  // Call this when the changes have been queued: the gathered units of this model are out of date, and later gathers
  // wait for the changes.
  void invalidate(const void* model);

  // Adds the buffers of gathered blocks.
  void add_state(std::vector<device::MemoryPark::Item>& state) const {
    for (const std::vector<Slot>* slots : {&block_slots_, &adapter_slots_}) {
      for (const Slot& slot : *slots) {
        state.push_back({slot.bytes, device::Category::kSlots});
      }
    }
  }
  // The ranks that units are gathered from.
  Communicator& shard_axis() {
    return gather_;
  }
  // Number of blocks that are prefetched while one block is in use.
  int64_t prefetch_depth() const {
    return prefetch_;
  }
  const GatherCount& gathered() const {
    return gathered_;
  }
  void observe_waits(WaitObserver observer) {
    observer_ = std::move(observer);
  }

 private:
  struct Slot {
    at::Tensor bytes; // uint8; a large slot's is undefined while it is empty
    at::Tensor whole; // the part in use, in the unit's dtype
    UnitKey key;
    int64_t users = 0; // that have acquired the unit and not released it
    uint64_t last_use = 0;
    SlotEvents events;

    Slot(at::Tensor buffer, at::Device device) : bytes(std::move(buffer)), events(device) {}
  };
  // Counts the uses of blocks from now on until the unit is used; kNever: it is not expected.
  static constexpr size_t kNever = std::numeric_limits<size_t>::max();
  size_t next_use(UnitKey key) const;
  void used(UnitKey key);
  // Returns next_use() of the unit in a slot; a prefetched unit that was not announced is needed at once.
  size_t next_use_of(const Slot& slot) const;

  std::vector<Slot>& slots_of(SlotSize size);
  Slot* find(UnitKey key);
  // Returns the slot not in use whose unit is needed last; null if all are in use.
  Slot* slot_needed_last(SlotSize size);
  void gather(Slot& slot, const UnitSource& unit);
  // Queue the gather into the slot on the current stream.
  void gather_by_collective(const Slot& slot, const UnitSource& unit);
  void gather_by_copies(const Slot& slot, const UnitSource& unit);
  void give_back(Slot& slot);

  Communicator& gather_;
  at::Device device_;
  SlotChecks* checks_;
  SideStream stream_;
  Fence allocated_; // kernels that used a large slot's memory before are done
  // The fences of each model's shards: the last change, and the last gather that read them.
  struct ShardFences {
    Fence changed, gathered;
    std::set<int64_t> met; // with peer memory: units that all ranks have written since the change; kAllUnits: all
  };
  static constexpr int64_t kAllUnits = -1;
  ShardFences& shards_of(const void* model);
  std::map<const void*, ShardFences> shards_;
  at::Tensor meeting_; // fp32 [1]: the number that is all-reduced
  std::vector<Slot> block_slots_, adapter_slots_, large_slots_;
  int64_t prefetch_;
  uint64_t clock_ = 0;
  std::vector<UnitKey> expected_;
  size_t position_ = 0; // of the next use in expected_
  GatherCount gathered_;
  WaitObserver observer_;
};

} // namespace distill::sharding
