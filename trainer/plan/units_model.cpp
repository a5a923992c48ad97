#include "trainer/plan/units_model.h"

#include "trainer/sharding/shard_range.h"

namespace distill::plan {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kLargeSlots = 2;
// Reductions that may still run when the next unit of their size wants a buffer (sharding/gradient_slots.cpp).
constexpr int64_t kReducingBlocks = 1;
constexpr int64_t kReducingLarge = 0;

} // namespace

WeightSlotsModel::WeightSlotsModel(Timeline& timeline, int64_t block_slots, int64_t block_bytes) : timeline_(timeline) {
  block_slots_.resize(static_cast<size_t>(block_slots));
  for (Slot& slot : block_slots_) {
    slot.buffer = timeline.allocate(Category::kSlots, block_bytes);
  }
  large_slots_.resize(kLargeSlots);
}

WeightSlotsModel::Slot* WeightSlotsModel::find(SlotKey key) {
  for (std::vector<Slot>* slots : {&block_slots_, &large_slots_}) {
    for (Slot& slot : *slots) {
      if (slot.key == key) {
        return &slot;
      }
    }
  }
  return nullptr;
}

WeightSlotsModel::Slot* WeightSlotsModel::free_slot(bool large, bool ahead) {
  Slot* best = nullptr;
  for (Slot& slot : large ? large_slots_ : block_slots_) {
    const bool taken = slot.in_use || (!ahead && slot.key.model != nullptr && slot.unread);
    if (!taken && (best == nullptr || slot.last_use < best->last_use)) {
      best = &slot;
    }
  }
  return best;
}

void WeightSlotsModel::give_back(Slot& slot) {
  slot.buffer.reset();
  slot.bytes = 0;
  slot.key = {};
}

void WeightSlotsModel::gather(Slot& slot, SlotKey key, bool large, int64_t bytes) {
  if (large && slot.bytes != bytes) {
    give_back(slot);
    slot.buffer = timeline_.allocate(Category::kSlots, bytes);
    slot.bytes = bytes;
  }
  slot.key = key;
  slot.last_use = ++clock_;
  slot.unread = true;
}

void WeightSlotsModel::prefetch(SlotKey key, bool large, int64_t bytes) {
  if (find(key) == nullptr) {
    if (Slot* slot = free_slot(large, /*ahead=*/false)) {
      gather(*slot, key, large, bytes);
    }
  }
}

void WeightSlotsModel::acquire(SlotKey key, bool large, int64_t bytes) {
  Slot* slot = find(key);
  if (slot == nullptr) {
    slot = free_slot(large, /*ahead=*/false);
    slot = slot != nullptr ? slot : free_slot(large, /*ahead=*/true);
    TORCH_CHECK(slot != nullptr, "memory plan: no weight slot is free for unit ", key.unit);
    gather(*slot, key, large, bytes);
  }
  slot->unread = false;
  slot->in_use = true;
  slot->last_use = ++clock_;
}

void WeightSlotsModel::release(SlotKey key) {
  if (Slot* slot = find(key)) {
    slot->in_use = false;
  }
}

void WeightSlotsModel::retire(SlotKey key) {
  for (Slot& slot : large_slots_) {
    if (slot.key == key) {
      give_back(slot);
    }
  }
}

void WeightSlotsModel::invalidate(const void* model) {
  for (Slot& slot : block_slots_) {
    if (slot.key.model == model) {
      slot.key = {};
    }
  }
  for (Slot& slot : large_slots_) {
    if (slot.key.model == model) {
      give_back(slot);
    }
  }
}

GradientSlotsModel::Slot* GradientSlotsModel::find_open(SlotKey key) {
  for (Slot& slot : slots_) {
    if (slot.key == key && !slot.reducing) {
      return &slot;
    }
  }
  return nullptr;
}

void GradientSlotsModel::leave_reducing(bool large, int64_t limit) {
  const auto counts = [large](const Slot& slot) { return slot.large == large && slot.reducing; };
  std::vector<int64_t> orders;
  for (const Slot& slot : slots_) {
    if (counts(slot)) {
      orders.push_back(slot.order);
    }
  }
  const int64_t excess = static_cast<int64_t>(orders.size()) - limit;
  if (excess > 0) {
    std::sort(orders.begin(), orders.end());
    const int64_t done = orders[static_cast<size_t>(excess - 1)];
    slots_.remove_if([done](const Slot& slot) { return slot.reducing && slot.order <= done; });
  }
}

void GradientSlotsModel::make_room(bool large) {
  leave_reducing(/*large=*/false, kReducingBlocks);
  if (large) {
    leave_reducing(/*large=*/true, kReducingLarge);
  }
}

void GradientSlotsModel::acquire(SlotKey key, bool large, int64_t numel) {
  if (find_open(key) != nullptr) {
    return;
  }
  make_room(large);
  Slot& slot = slots_.emplace_back();
  slot.key = key;
  slot.large = large;
  slot.numel = numel;
  slot.gradient = timeline_.allocate(Category::kSlots, numel * kFloat);
}

void GradientSlotsModel::reduce(SlotKey key, int64_t shard_numel, bool accumulate) {
  Slot* slot = find_open(key);
  TORCH_CHECK(slot != nullptr, "memory plan: unit ", key.unit, " is reduced, but has no gradient");
  make_room(slot->large);
  if (accumulate) {
    slot->staged = timeline_.allocate(Category::kSlots, shard_numel * kFloat);
  }
  if (bf16_) {
    slot->low_precision = timeline_.allocate(Category::kSlots, (slot->numel + shard_numel) * 2);
  }
  if (!cuda_) { // Gloo works on a copy
    const Buffer copy = timeline_.allocate(Category::kWorkspace, slot->numel * (bf16_ ? 2 : kFloat));
  }
  slot->reducing = true;
  slot->order = ++reductions_;
}

void GradientSlotsModel::finish() {
  leave_reducing(/*large=*/false, 0);
  leave_reducing(/*large=*/true, 0);
}

UnitsModel::UnitsModel(
    Timeline& timeline, const RunShape& shape, const models::ModelConfig& config, at::ScalarType dtype,
    int64_t shard_size, bool trainable)
    : timeline_(timeline),
      shape_(shape),
      config_(config),
      element_(static_cast<int64_t>(c10::elementSize(dtype))),
      trainable_(trainable),
      separate_master_(trainable && (dtype != at::kFloat || shape.optimizer_on_host)) {
  for (const models::UnitLayout& layout : models::unit_layouts(config)) {
    const sharding::ShardRange range = sharding::shard_range(layout.numel, /*rank=*/0, shard_size);
    Unit unit;
    unit.shard = range.numel;
    unit.whole = range.padded_numel;
    unit.large = layout.kind != models::UnitKind::kBlock;
    units_.push_back(std::move(unit));
  }
}

void UnitsModel::load() {
  for (Unit& unit : units_) {
    unit.weights = timeline_.allocate(trainable_ ? Category::kStudent : Category::kTeacher, unit.shard * element_);
    if (separate_master_ && !shape_.optimizer_on_host) {
      unit.master = timeline_.allocate(Category::kMaster, unit.shard * kFloat);
    }
  }
}

void UnitsModel::use_slots(WeightSlotsModel* weights, GradientSlotsModel* gradients) {
  weight_slots_ = weights;
  gradient_slots_ = gradients;
  for (Unit& unit : units_) {
    if (unit.master.defined()) { // gathers round the master weights
      unit.weights.reset();
    }
  }
}

int64_t UnitsModel::largest_block_bytes() const {
  int64_t bytes = 0;
  for (const Unit& unit : units_) {
    bytes = std::max(bytes, unit.large ? 0 : unit.whole * element_);
  }
  return bytes;
}

void UnitsModel::weights(int64_t index) {
  if (std::exchange(units_[index].updating, false)) {
    units_[index].gradient.reset();
  }
  if (weight_slots_ != nullptr) {
    weight_slots_->acquire(key(index), units_[index].large, units_[index].whole * element_);
  }
}

void UnitsModel::release(int64_t index) {
  if (weight_slots_ != nullptr) {
    weight_slots_->release(key(index));
  }
}

void UnitsModel::retire(int64_t index) {
  if (weight_slots_ != nullptr) {
    weight_slots_->retire(key(index));
  }
}

void UnitsModel::prefetch(int64_t index) {
  if (weight_slots_ != nullptr) {
    weight_slots_->prefetch(key(index), units_[index].large, units_[index].whole * element_);
  }
}

void UnitsModel::gradient(int64_t index) {
  Unit& unit = units_[index];
  if (gradient_slots_ != nullptr) {
    gradient_slots_->acquire(key(index), unit.large, unit.whole);
  } else if (!unit.gradient.defined()) {
    unit.gradient = timeline_.allocate(Category::kGradients, unit.shard * kFloat);
  }
}

void UnitsModel::reduce(int64_t index, bool last) {
  if (gradient_slots_ == nullptr || (shape_.accumulate_whole && !last)) {
    return;
  }
  Unit& unit = units_[index];
  const bool accumulate = unit.gradient.defined();
  if (!accumulate) {
    unit.gradient = timeline_.allocate(Category::kGradients, unit.shard * kFloat);
  }
  gradient_slots_->reduce(key(index), unit.shard, accumulate);
}

void UnitsModel::finish_gradients() {
  if (gradient_slots_ != nullptr) {
    gradient_slots_->finish();
  }
}

void UnitsModel::drop_gradients() {
  for (Unit& unit : units_) {
    if (!unit.updating) {
      unit.gradient.reset();
    }
  }
}

void UnitsModel::units_updated() {
  for (Unit& unit : units_) {
    unit.updating = true;
  }
}

void UnitsModel::weights_changed() {
  if (weight_slots_ != nullptr) {
    weight_slots_->invalidate(this);
  }
}

void UnitsModel::prefetch_first() {
  prefetch(embedding_unit());
  prefetch(block_unit(0));
}

void UnitsModel::prefetch_after(int64_t block, UnitsModel* next) {
  const int64_t blocks = config_.num_layers;
  for (int64_t ahead = block + 1; ahead < std::min(blocks, block + 1 + prefetch_depth()); ++ahead) {
    prefetch(block_unit(ahead));
  }
  if (block + 1 == blocks) {
    prefetch(head_unit());
    if (next != nullptr) {
      next->prefetch_first();
    }
  }
}

void UnitsModel::prefetch_before(int64_t block) {
  for (int64_t ahead = block - 1; ahead >= std::max<int64_t>(0, block - prefetch_depth()); --ahead) {
    prefetch(block_unit(ahead));
  }
}

} // namespace distill::plan
