#include "trainer/sharding/weight_slots.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "trainer/device/memory_tracker.h"

namespace distill::sharding {

WeightSlots::WeightSlots(at::Device device, Communicator& gather, const SlotPlan& plan, SlotChecks* checks)
    : gather_(gather),
      device_(device),
      checks_(checks),
      stream_(device),
      allocated_(device),
      meeting_(at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(device))),
      prefetch_(plan.prefetch) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  for (int64_t i = 0; i < plan.block_slots; ++i) {
    block_slots_.emplace_back(at::empty({plan.block_bytes}, options), device);
    device::label(block_slots_.back().bytes, device::Category::kSlots);
    if (plan.adapter_bytes > 0) {
      adapter_slots_.emplace_back(at::empty({plan.adapter_bytes}, options), device);
      device::label(adapter_slots_.back().bytes, device::Category::kSlots);
    }
  }
  for (int64_t i = 0; i < plan.large_slots; ++i) {
    large_slots_.emplace_back(at::Tensor(), device);
  }
}

WeightSlots::ShardFences& WeightSlots::shards_of(const void* model) {
  return shards_.try_emplace(model, ShardFences{Fence(device_), Fence(device_), {}}).first->second;
}

std::vector<WeightSlots::Slot>& WeightSlots::slots_of(SlotSize size) {
  return size == SlotSize::kBlock ? block_slots_ : size == SlotSize::kAdapter ? adapter_slots_ : large_slots_;
}

WeightSlots::Slot* WeightSlots::find(UnitKey key) {
  for (std::vector<Slot>* slots : {&block_slots_, &adapter_slots_, &large_slots_}) {
    for (Slot& slot : *slots) {
      if (slot.key == key) {
        return &slot;
      }
    }
  }
  return nullptr;
}

void WeightSlots::expect(std::vector<UnitKey> uses) {
  expected_ = std::move(uses);
  position_ = 0;
}

size_t WeightSlots::next_use(UnitKey key) const {
  const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(position_);
  const auto found = std::find(begin, expected_.end(), key);
  return found == expected_.end() ? kNever : static_cast<size_t>(found - begin);
}

size_t WeightSlots::next_use_of(const Slot& slot) const {
  const size_t use = slot.key.model == nullptr ? kNever : next_use(slot.key);
  const bool waiting = slot.key.model != nullptr && slot.events.unread();
  return use == kNever && waiting ? 0 : use;
}

void WeightSlots::used(UnitKey key) {
  if (const size_t use = next_use(key); use != kNever) {
    position_ += use + 1;
  }
}

WeightSlots::Slot* WeightSlots::slot_needed_last(SlotSize size) {
  Slot* last = nullptr;
  size_t last_use = 0;
  for (Slot& slot : slots_of(size)) {
    if (slot.users > 0) {
      continue;
    }
    const size_t use = next_use_of(slot);
    if (last == nullptr || use > last_use || (use == last_use && slot.last_use < last->last_use)) {
      last = &slot;
      last_use = use;
    }
  }
  return last;
}

void WeightSlots::gather(Slot& slot, const UnitSource& unit) {
  const at::Tensor& shard = unit.shard;
  const int64_t bytes = gather_.size() * shard.numel() * static_cast<int64_t>(c10::elementSize(unit.dtype));
  if (unit.size == SlotSize::kLarge && (!slot.bytes.defined() || slot.bytes.numel() != bytes)) {
    give_back(slot);
    slot.bytes = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device_));
    device::label(slot.bytes, device::Category::kSlots);
    allocated_.record();
  }
  TORCH_CHECK(
      bytes <= slot.bytes.numel(), "weight slot of ", slot.bytes.numel(), " bytes cannot hold unit ", unit.key.unit,
      " of ", bytes, " bytes");
  slot.key = unit.key;
  slot.last_use = ++clock_;
  slot.whole = slot.bytes.narrow(0, 0, bytes).view(unit.dtype);
  ShardFences& shards = shards_of(unit.key.model);
  stream_.run([&] {
    slot.events.write_begins(); // the last unit's kernels have read the slot
    allocated_.wait();
    shards.changed.wait(); // the optimizer has written the shard
    if (unit.updated != nullptr) {
      unit.updated->wait();
    }
    if (unit.peers == nullptr) {
      gather_by_collective(slot, unit);
    } else {
      gather_by_copies(slot, unit);
    }
    slot.events.write_ends();
    shards.gathered.record();
  });
  gathered_.units += 1;
  gathered_.bytes += bytes;
}

void WeightSlots::gather_by_collective(const Slot& slot, const UnitSource& unit) {
  const at::Tensor& shard = unit.shard;
  if (shard.scalar_type() == unit.dtype) {
    gather_.all_gather(slot.whole, shard);
    return;
  }
  // The shard is rounded into its place in the slot, and the all-gather is then in place.
  at::Tensor part = slot.whole.narrow(0, gather_.rank() * shard.numel(), shard.numel());
  part.copy_(shard);
  gather_.all_gather(slot.whole, part);
}

void WeightSlots::gather_by_copies(const Slot& slot, const UnitSource& unit) {
  const int64_t changes = unit.updated != nullptr ? unit.key.unit : kAllUnits;
  if (shards_of(unit.key.model).met.insert(changes).second) {
    gather_.all_reduce(meeting_); // every rank's part is written
  }
  const int64_t size = gather_.size(), numel = unit.shard.numel();
  for (int64_t i = 1; i <= size; ++i) { // ranks begin with different ones, so that no rank's memory serves all at once
    const int64_t rank = (gather_.rank() + i) % size;
    slot.whole.narrow(0, rank * numel, numel).copy_((*unit.peers)[static_cast<size_t>(rank)], /*non_blocking=*/true);
  }
}

void WeightSlots::prefetch(const UnitSource& unit) {
  if (find(unit.key) != nullptr) {
    return;
  }
  Slot* slot = slot_needed_last(unit.size);
  if (slot == nullptr) {
    return;
  }
  const size_t use = next_use_of(*slot);
  if (use != kNever && use <= next_use(unit.key)) {
    return; // the slots hold units that are needed before this one
  }
  if (!device::has_streams(device_)) { // complete on return: all of it counts as waiting
    const Waiting waiting(observer_);
    gather(*slot, unit);
  } else {
    gather(*slot, unit);
  }
}

at::Tensor WeightSlots::acquire(const UnitSource& unit) {
  Slot* slot = find(unit.key);
  {
    const Waiting waiting(observer_);
    if (slot == nullptr) {
      slot = slot_needed_last(unit.size);
      TORCH_CHECK(
          slot != nullptr, "no weight slot is free for unit ", unit.key.unit, ": an earlier unit was not released");
      gather(*slot, unit);
    }
    if (slot->users == 0) {
      slot->events.read_begins();
    }
  }
  ++slot->users;
  slot->last_use = ++clock_;
  used(unit.key);
  if (checks_ != nullptr) {
    checks_->check(unit.key, slot->whole);
  }
  return slot->whole;
}

void WeightSlots::release(UnitKey key) {
  Slot* slot = find(key);
  TORCH_CHECK(slot != nullptr && slot->users > 0, "unit ", key.unit, " was released without being acquired");
  if (checks_ != nullptr) {
    checks_->check(key, slot->whole);
  }
  if (--slot->users == 0) {
    slot->events.read_ends();
  }
}

void WeightSlots::give_back(Slot& slot) {
  slot.events.wait(); // an unused prefetch may still be writing
  slot.bytes.reset();
  slot.whole.reset();
  slot.key = {};
}

void WeightSlots::retire(UnitKey key) {
  for (Slot& slot : large_slots_) {
    if (slot.key == key && slot.users == 0) {
      give_back(slot);
    }
  }
}

void WeightSlots::wait_for_gathers(const void* model) {
  const Waiting waiting(observer_);
  shards_of(model).gathered.wait();
}

void WeightSlots::invalidate(const void* model) {
  shards_of(model).changed.record();
  shards_of(model).met.clear();
  if (checks_ != nullptr) {
    checks_->forget(model);
  }
  for (std::vector<Slot>* slots : {&block_slots_, &adapter_slots_}) {
    for (Slot& slot : *slots) {
      if (slot.key.model == model) {
        TORCH_CHECK(slot.users == 0, "unit ", slot.key.unit, " is in use while its weights change");
        slot.key = {};
        slot.last_use = 0; // the first slot to be reused
      }
    }
  }
  for (Slot& slot : large_slots_) {
    if (slot.key.model == model) {
      TORCH_CHECK(slot.users == 0, "unit ", slot.key.unit, " is in use while its weights change");
      give_back(slot);
    }
  }
}

} // namespace distill::sharding
