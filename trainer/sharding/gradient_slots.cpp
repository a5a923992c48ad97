#include "trainer/sharding/gradient_slots.h"

#include "trainer/device/memory_tracker.h"

namespace distill::sharding {
namespace {

// Number of reductions that may still be running when the next unit of the same size needs a buffer.
constexpr int64_t kReducingBlocks = 1;
constexpr int64_t kReducingLarge = 0;

} // namespace

GradientSlots::GradientSlots(
    at::Device device, Communicator& reduce, Communicator* replicate, at::ScalarType reduce_dtype)
    : reduce_(reduce), replicate_(replicate), device_(device), reduce_dtype_(reduce_dtype), stream_(device) {}

GradientSlots::Slot* GradientSlots::find_open(UnitKey key) {
  for (Slot& slot : slots_) {
    if (slot.key == key && slot.reduction == 0) {
      return &slot;
    }
  }
  return nullptr;
}

void GradientSlots::make_room(SlotSize size) {
  leave_reducing(SlotSize::kBlock, kReducingBlocks);
  leave_reducing(SlotSize::kAdapter, kReducingBlocks);
  if (size == SlotSize::kLarge) {
    leave_reducing(SlotSize::kLarge, kReducingLarge);
  }
}

void GradientSlots::leave_reducing(SlotSize size, int64_t limit) {
  std::vector<int64_t> numbers;
  for (const Slot& slot : slots_) {
    if (slot.size == size && slot.reduction > 0) {
      numbers.push_back(slot.reduction);
    }
  }
  const int64_t excess = static_cast<int64_t>(numbers.size()) - limit;
  if (excess <= 0) {
    return;
  }
  std::sort(numbers.begin(), numbers.end());
  const int64_t last = numbers[static_cast<size_t>(excess - 1)];
  const auto is_over = [last](const Slot& slot) { return slot.reduction > 0 && slot.reduction <= last; };
  {
    const Waiting waiting(observer_);
    for (const Slot& slot : slots_) {
      if (is_over(slot)) {
        slot.events.wait(); // then the compute stream may reuse the memory
      }
    }
  }
  slots_.remove_if(is_over);
}

GradientSlots::Gradient GradientSlots::acquire(UnitKey key, SlotSize size, int64_t numel) {
  if (Slot* open = find_open(key)) {
    return {open->gradient, /*is_new=*/false};
  }
  make_room(size);
  Slot& slot = slots_.emplace_back(key, size, device_);
  slot.events.write_begins();
  const device::LabelScope label(device::Category::kSlots);
  slot.gradient = at::empty({numel}, at::TensorOptions().dtype(at::kFloat).device(device_));
  return {slot.gradient, /*is_new=*/true};
}

void GradientSlots::reduce(UnitKey key, at::Tensor shard, const Reduction& options) {
  Slot* slot = find_open(key);
  TORCH_CHECK(slot != nullptr, "unit ", key.unit, " is reduced, but has no gradient");
  // A buffer that has been open since an earlier micro-batch joins the running reductions only now.
  make_room(slot->size);
  {
    const device::LabelScope label(device::Category::kSlots);
    if (options.accumulate || shard.scalar_type() != at::kFloat) {
      slot->staged = at::empty({shard.numel()}, shard.options().dtype(at::kFloat));
    }
    if (reduce_dtype_ != at::kFloat) {
      slot->low_precision = at::empty({slot->gradient.numel() + shard.numel()}, shard.options().dtype(reduce_dtype_));
    }
  }
  slot->events.write_ends();
  const auto run = [&] {
    slot->events.read_begins(); // the unit's backward has written the buffer
    at::Tensor target = slot->staged.defined() ? slot->staged : shard;
    if (reduce_dtype_ == at::kFloat) {
      reduce_.reduce_scatter(target, slot->gradient);
    } else {
      at::Tensor whole = slot->low_precision.narrow(0, 0, slot->gradient.numel());
      at::Tensor part = slot->low_precision.narrow(0, whole.numel(), shard.numel());
      whole.copy_(slot->gradient);
      reduce_.reduce_scatter(part, whole);
      target.copy_(part);
    }
    store(shard, target, options);
    slot->events.read_ends();
  };
  if (!device::has_streams(device_)) { // complete on return: all of it counts as waiting
    const Waiting waiting(observer_);
    run();
  } else {
    stream_.run(run);
  }
  slot->reduction = ++reductions_;
}

void GradientSlots::store(at::Tensor shard, at::Tensor sum, const Reduction& options) {
  const bool over_replicas = replicate_ != nullptr && options.last;
  if (shard.scalar_type() != at::kFloat) { // is rounded once, after the last sum
    if (over_replicas) {
      sum = options.accumulate ? sum.add_(shard) : sum;
      replicate_->all_reduce(sum);
    }
    models::add_rounded(shard, sum, options.accumulate && !over_replicas, options.rounding);
    return;
  }
  if (options.accumulate) {
    shard.add_(sum);
  }
  if (over_replicas) {
    replicate_->all_reduce(shard);
  }
}

void GradientSlots::finish() {
  for (const SlotSize size : {SlotSize::kBlock, SlotSize::kAdapter, SlotSize::kLarge}) {
    leave_reducing(size, 0);
  }
}

} // namespace distill::sharding
