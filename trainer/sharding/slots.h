#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trainer/sharding/communicator.h"
#include "trainer/sharding/side_stream.h"

// Fixed device buffers for whole units, for the life of the process. A collective writes straight into a slot or reads
// it; parameters and gradients are views of it. Four events for each unit's use of a slot are the whole argument that
// this is correct: gathered -> (compute) -> free -> the next gather; gradient ready -> reduced -> the next gradient.
namespace distill::sharding {

// Which unit of which model a slot holds.
struct UnitKey {
  const void* model = nullptr;
  int64_t unit = -1;

  bool operator==(const UnitKey&) const = default;
};

// Blocks come and go one after the other; embedding and head are large and stay for longer.
enum class SlotSize {
  kBlock,
  kLarge
};

struct SlotPlan {
  int64_t block_bytes = 0; // of the largest block's whole flat buffer
  int64_t block_slots = 2;
  int64_t large_bytes = 0; // of the largest embedding or head
  int64_t large_slots = 2;
};

// Gathered weights. All of it is called from the compute thread, with the compute stream current.
class WeightSlots {
 public:
  WeightSlots(at::Device device, Communicator& gather, const SlotPlan& plan);

  // Starts the gather unless the unit is there or no slot is free.
  void prefetch(UnitKey key, SlotSize size, const at::Tensor& shard);
  // The whole unit [world_size * shard.numel()] in the shard's dtype; the compute stream waits for its gather. Stays in
  // its slot until release(), and after that until the slot is needed.
  at::Tensor acquire(UnitKey key, SlotSize size, const at::Tensor& shard);
  void release(UnitKey key);
  // Before the shards change: the compute stream waits for every gather that reads them.
  void wait_for_gathers();
  // After the changes have been queued: what was gathered from this model is not current any more, and gathers from now
  // on wait for the changes.
  void invalidate(const void* model);

 private:
  struct Slot {
    at::Tensor bytes; // uint8
    UnitKey key;
    bool in_use = false;
    uint64_t last_use = 0;
    Fence gathered;
    Fence free;

    Slot(at::Tensor buffer, at::Device device) : bytes(std::move(buffer)), gathered(device), free(device) {}
  };
  Slot* find(UnitKey key);
  Slot* gather_into_free_slot(UnitKey key, SlotSize size, const at::Tensor& shard);

  Communicator& gather_;
  SideStream stream_;
  Fence shards_current_; // the last change of any shard
  std::vector<Slot> block_slots_, large_slots_;
  uint64_t clock_ = 0;
};

// fp32 gradients of whole units on their way to the shards.
class GradientSlots {
 public:
  // `replicate` null: one replica. `reduce_dtype`: fp32, or bf16 for half the traffic.
  GradientSlots(
      at::Device device, Communicator& reduce, Communicator* replicate, at::ScalarType reduce_dtype,
      const SlotPlan& plan);

  // The whole unit's gradient, zero at first, to accumulate into; the same tensor until reduce().
  at::Tensor acquire(UnitKey key, SlotSize size, int64_t numel);
  // Queues the sum over all ranks into `shard` (or added to it), on a stream of its own.
  void reduce(UnitKey key, at::Tensor shard, bool accumulate);
  // The compute stream waits for every reduction queued so far.
  void finish();

 private:
  struct Slot {
    at::Tensor buffer; // fp32
    at::Tensor gradient; // the part in use
    UnitKey key;
    bool in_use = false;
    uint64_t last_use = 0;
    Fence ready;
    Fence reduced;

    Slot(at::Tensor memory, at::Device device) : buffer(std::move(memory)), ready(device), reduced(device) {}
  };
  Slot* find(UnitKey key);

  Communicator& reduce_;
  Communicator* replicate_;
  at::ScalarType reduce_dtype_;
  SideStream stream_;
  std::vector<Slot> block_slots_, large_slots_;
  int64_t largest_shard_ = 0; // elements
  at::Tensor staged_; // fp32, one shard: what is added to a shard that holds earlier micro-batches; made when needed
  at::Tensor low_precision_; // whole unit and shard in reduce_dtype, unless that is fp32
  uint64_t clock_ = 0;
};

} // namespace distill::sharding
