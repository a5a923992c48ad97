#pragma once

#include <ATen/core/Tensor.h>

#include <list>

#include "trainer/models/ops/rounded_sum.h"
#include "trainer/sharding/communicator.h"
#include "trainer/sharding/slot_events.h"
#include "trainer/sharding/slots.h"
#include "trainer/sharding/wait_observer.h"

namespace distill::sharding {

// fp32 gradients of whole units before they are reduced into the shards. A unit's buffer is taken from the compute
// stream's allocator at its first acquire() and given back when that stream has waited for the reduction, so there are
// no buffers outside the backward pass. A limited number of reductions overlaps with the compute stream.
class GradientSlots {
 public:
  // `replicate` null: one replica. `reduce_dtype`: fp32, or bf16 for half the traffic.
  GradientSlots(at::Device device, Communicator& reduce, Communicator* replicate, at::ScalarType reduce_dtype);

  struct Gradient {
    at::Tensor flat; // [numel]; the same tensor until reduce()
    bool is_new = false; // not initialised
  };
  // The whole unit's gradient.
  Gradient acquire(UnitKey key, SlotSize size, int64_t numel);

  struct Reduction {
    bool accumulate = false; // add to the shard, which holds earlier micro-batches; false: overwrite it
    bool last = true; // last reduction of the step: replicas then sum their shards
    models::RoundingKey rounding = {}; // of a shard in bf16
  };
  // Queues the sum over all ranks into `shard`, on a stream of its own. Where the shard is bf16, sums are computed in
  // fp32 and rounded stochastically.
  void reduce(UnitKey key, at::Tensor shard, const Reduction& options);
  // The compute stream waits for every queued reduction.
  void finish();

  void observe_waits(WaitObserver observer) {
    observer_ = std::move(observer);
  }

 private:
  struct Slot {
    UnitKey key;
    SlotSize size;
    at::Tensor gradient; // fp32
    at::Tensor low_precision; // whole unit and shard in the reduction's dtype; undefined if that is fp32
    at::Tensor staged; // fp32 shard: this micro-batch's sum, before it is added to earlier ones or rounded
    int64_t reduction = 0; // number of its reduction, from 1; 0: none is queued yet
    SlotEvents events;

    Slot(UnitKey unit, SlotSize unit_size, at::Device device) : key(unit), size(unit_size), events(device) {}
  };
  Slot* find_open(UnitKey key);
  // The class calls this before it allocates a buffer of this size, and before it queues the buffer's reduction.
  void make_room(SlotSize size);
  // Waits for the oldest reductions of this size until at most `limit` are left. Reductions queued before those are
  // then over too, whatever their size, and their buffers are freed without another wait.
  void leave_reducing(SlotSize size, int64_t limit);
  // Adds `sum`, this micro-batch's over the shard axis, to `shard`, and sums the shards of the replicas in the step's
  // last reduction. `sum` may be overwritten; it is the shard itself where nothing is added or rounded.
  void store(at::Tensor shard, at::Tensor sum, const Reduction& options);

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
