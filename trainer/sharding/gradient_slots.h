#pragma once

#include <ATen/core/Tensor.h>

#include <list>

#include "trainer/sharding/communicator.h"
#include "trainer/sharding/slot_events.h"
#include "trainer/sharding/slots.h"
#include "trainer/sharding/wait_observer.h"

namespace distill::sharding {

// fp32 gradients of whole units on their way to the shards. A unit's buffer exists from its first acquire() until its
// reduction has been waited for, taken from and given back to the compute stream's allocator: outside the backward pass
// there are none. A limited number of reductions overlaps with the compute stream.
class GradientSlots {
 public:
  // `replicate` null: one replica. `reduce_dtype`: fp32, or bf16 for half the traffic.
  GradientSlots(at::Device device, Communicator& reduce, Communicator* replicate, at::ScalarType reduce_dtype);

  struct Gradient {
    at::Tensor flat; // [numel]; the same tensor until reduce()
    bool is_new = false; // it holds nothing yet
  };
  // The whole unit's gradient.
  Gradient acquire(UnitKey key, SlotSize size, int64_t numel);

  struct Reduction {
    bool accumulate = false; // the shard holds earlier micro-batches; otherwise it is written
    bool last = true; // of the step: replicas add up their shards
  };
  // Queues the sum over all ranks into `shard`, on a stream of its own.
  void reduce(UnitKey key, at::Tensor shard, const Reduction& options);
  // The compute stream waits for every reduction queued so far.
  void finish();

  void observe_waits(WaitObserver observer) {
    observer_ = std::move(observer);
  }

 private:
  struct Slot {
    UnitKey key;
    SlotSize size;
    at::Tensor gradient; // fp32
    at::Tensor low_precision; // whole unit and shard in the reduction's dtype, unless that is fp32
    at::Tensor staged; // fp32, a shard: what is added to earlier micro-batches
    int64_t reduction = 0; // its number, from 1; 0: not reducing yet
    SlotEvents events;

    Slot(UnitKey unit, SlotSize unit_size, at::Device device) : key(unit), size(unit_size), events(device) {}
  };
  Slot* find_open(UnitKey key);
  // Before a buffer of this size is made, or takes part in a reduction.
  void make_room(SlotSize size);
  // Waits for the oldest reductions of this size until at most `limit` are left. Those queued before them are over then
  // too, whatever their size: their buffers go without another wait.
  void leave_reducing(SlotSize size, int64_t limit);

  Communicator& reduce_;
  Communicator* replicate_;
  at::Device device_;
  at::ScalarType reduce_dtype_;
  SideStream stream_;
  int64_t reductions_ = 0; // queued so far
  std::list<Slot> slots_;
  WaitObserver observer_;
};

} // namespace distill::sharding
