#include "trainer/sharding/slots.h"

namespace distill::sharding {
namespace {

// The slot that has been unused for longest; null where all are in use.
template <typename Slot>
Slot* least_recently_used(std::vector<Slot>& slots) {
  Slot* best = nullptr;
  for (Slot& slot : slots) {
    if (!slot.in_use && (best == nullptr || slot.last_use < best->last_use)) {
      best = &slot;
    }
  }
  return best;
}

template <typename Slot>
Slot* find_key(std::vector<Slot>& slots, UnitKey key) {
  for (Slot& slot : slots) {
    if (slot.key == key) {
      return &slot;
    }
  }
  return nullptr;
}

} // namespace

WeightSlots::WeightSlots(at::Device device, Communicator& gather, const SlotPlan& plan)
    : gather_(gather), stream_(device), shards_current_(device) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  for (int64_t i = 0; i < plan.block_slots; ++i) {
    block_slots_.emplace_back(at::empty({plan.block_bytes}, options), device);
  }
  for (int64_t i = 0; i < plan.large_slots; ++i) {
    large_slots_.emplace_back(at::empty({plan.large_bytes}, options), device);
  }
}

WeightSlots::Slot* WeightSlots::find(UnitKey key) {
  Slot* slot = find_key(block_slots_, key);
  return slot != nullptr ? slot : find_key(large_slots_, key);
}

WeightSlots::Slot* WeightSlots::gather_into_free_slot(UnitKey key, SlotSize size, const at::Tensor& shard) {
  Slot* slot = least_recently_used(size == SlotSize::kBlock ? block_slots_ : large_slots_);
  if (slot == nullptr) {
    return nullptr;
  }
  const int64_t bytes = gather_.size() * static_cast<int64_t>(shard.nbytes());
  TORCH_CHECK(
      bytes <= slot->bytes.numel(), "weight slot of ", slot->bytes.numel(), " bytes cannot hold unit ", key.unit,
      " of ", bytes, " bytes");
  slot->key = key;
  slot->last_use = ++clock_;
  const at::Tensor whole = slot->bytes.narrow(0, 0, bytes).view(shard.scalar_type());
  stream_.run([&] {
    slot->free.wait(); // the last unit's kernels have read the slot
    shards_current_.wait(); // the optimizer has written the shard
    gather_.all_gather(whole, shard);
    slot->gathered.record();
  });
  return slot;
}

void WeightSlots::prefetch(UnitKey key, SlotSize size, const at::Tensor& shard) {
  if (find(key) == nullptr) {
    gather_into_free_slot(key, size, shard);
  }
}

at::Tensor WeightSlots::acquire(UnitKey key, SlotSize size, const at::Tensor& shard) {
  Slot* slot = find(key);
  if (slot == nullptr) {
    slot = gather_into_free_slot(key, size, shard);
  }
  TORCH_CHECK(slot != nullptr, "no weight slot is free for unit ", key.unit, ": an earlier unit was not released");
  slot->gathered.wait();
  slot->in_use = true;
  slot->last_use = ++clock_;
  const int64_t bytes = gather_.size() * static_cast<int64_t>(shard.nbytes());
  return slot->bytes.narrow(0, 0, bytes).view(shard.scalar_type());
}

void WeightSlots::release(UnitKey key) {
  Slot* slot = find(key);
  TORCH_CHECK(slot != nullptr && slot->in_use, "unit ", key.unit, " was released without being acquired");
  slot->free.record();
  slot->in_use = false;
}

void WeightSlots::wait_for_gathers() {
  for (std::vector<Slot>* slots : {&block_slots_, &large_slots_}) {
    for (Slot& slot : *slots) {
      slot.gathered.wait();
    }
  }
}

void WeightSlots::invalidate(const void* model) {
  shards_current_.record();
  for (std::vector<Slot>* slots : {&block_slots_, &large_slots_}) {
    for (Slot& slot : *slots) {
      if (slot.key.model == model) {
        TORCH_CHECK(!slot.in_use, "unit ", slot.key.unit, " is in use while its weights change");
        slot.key = {};
      }
    }
  }
}

GradientSlots::GradientSlots(
    at::Device device, Communicator& reduce, Communicator* replicate, at::ScalarType reduce_dtype, const SlotPlan& plan)
    : reduce_(reduce), replicate_(replicate), reduce_dtype_(reduce_dtype), stream_(device) {
  const auto options = at::TensorOptions().device(device);
  const int64_t floats = static_cast<int64_t>(sizeof(float));
  for (int64_t i = 0; i < plan.block_slots; ++i) {
    block_slots_.emplace_back(at::empty({plan.block_bytes / floats}, options.dtype(at::kFloat)), device);
  }
  for (int64_t i = 0; i < plan.large_slots; ++i) {
    large_slots_.emplace_back(at::empty({plan.large_bytes / floats}, options.dtype(at::kFloat)), device);
  }
  const int64_t largest = std::max(plan.block_bytes, plan.large_bytes) / floats;
  largest_shard_ = largest / reduce.size();
  if (reduce_dtype != at::kFloat) {
    low_precision_ = at::empty({largest + largest / reduce.size()}, options.dtype(reduce_dtype));
  }
}

GradientSlots::Slot* GradientSlots::find(UnitKey key) {
  Slot* slot = find_key(block_slots_, key);
  return slot != nullptr ? slot : find_key(large_slots_, key);
}

at::Tensor GradientSlots::acquire(UnitKey key, SlotSize size, int64_t numel) {
  Slot* slot = find(key);
  if (slot != nullptr && slot->in_use) {
    return slot->gradient;
  }
  slot = least_recently_used(size == SlotSize::kBlock ? block_slots_ : large_slots_);
  TORCH_CHECK(slot != nullptr, "no gradient slot is free for unit ", key.unit, ": an earlier unit was not reduced");
  TORCH_CHECK(
      numel <= slot->buffer.numel(), "gradient slot of ", slot->buffer.numel(), " elements cannot hold unit ", key.unit,
      " of ", numel);
  slot->reduced.wait(); // the last reduction has read the slot
  slot->key = key;
  slot->in_use = true;
  slot->last_use = ++clock_;
  slot->gradient = slot->buffer.narrow(0, 0, numel);
  slot->gradient.zero_();
  return slot->gradient;
}

void GradientSlots::reduce(UnitKey key, at::Tensor shard, bool accumulate) {
  Slot* slot = find(key);
  TORCH_CHECK(slot != nullptr && slot->in_use, "unit ", key.unit, " is reduced, but has no gradient");
  if (accumulate && !staged_.defined()) { // a step of several micro-batches
    staged_ = at::empty({largest_shard_}, shard.options());
  }
  slot->ready.record();
  stream_.run([&] {
    slot->ready.wait(); // the unit's backward has written the slot
    at::Tensor target = accumulate ? staged_.narrow(0, 0, shard.numel()) : shard;
    if (reduce_dtype_ == at::kFloat) {
      reduce_.reduce_scatter(target, slot->gradient);
    } else {
      at::Tensor whole = low_precision_.narrow(0, 0, slot->gradient.numel());
      at::Tensor part = low_precision_.narrow(0, whole.numel(), shard.numel());
      whole.copy_(slot->gradient);
      reduce_.reduce_scatter(part, whole);
      target.copy_(part);
    }
    if (replicate_ != nullptr) {
      replicate_->all_reduce(target);
    }
    if (accumulate) {
      shard.add_(target);
    }
    slot->reduced.record();
  });
  slot->in_use = false;
}

void GradientSlots::finish() {
  for (std::vector<Slot>* slots : {&block_slots_, &large_slots_}) {
    for (Slot& slot : *slots) {
      slot.reduced.wait();
    }
  }
}

} // namespace distill::sharding
