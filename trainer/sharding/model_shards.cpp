#include "trainer/sharding/model_shards.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/models/packed_layout.h"

namespace distill::sharding {

ModelShards::ModelShards(models::ModelConfig config, const ShardOptions& options, std::shared_ptr<ModelShards> base)
    : config_(std::move(config)), options_(options), base_(std::move(base)) {
  TORCH_CHECK(
      config_.adapter.has_value() == (base_ != nullptr) && (base_ == nullptr || !base_->trainable()),
      "a model with an adapter has a frozen base, and no other has one");
  if (options.trainable && base_ == nullptr && config_.float8.any()) {
    TORCH_CHECK(options.state.host == nullptr, "the state of a model that is trained in float8 is on the device");
    float8_ = std::make_unique<Float8Weights>(options.device, options.compute_dtype, config_.float8_weight_gradients);
  }
  for (models::UnitLayout& layout : models::trained_layouts(config_)) {
    const auto index = static_cast<int64_t>(units_.size());
    UnitShard& unit = units_.emplace_back();
    unit.layout = options.trainable || base_ != nullptr
        ? layout
        : models::packed_layout(layout, config_.float8, options.compute_dtype);
    unit.shard = shard_range(unit.layout.numel, options.rank, options.world_size);
    if (float8_ != nullptr && layout.kind == models::UnitKind::kBlock && config_.float8.any_of(layout.block)) {
      float8_->add(index, unit.layout, unit.shard);
    }
    updates_.emplace_back(options.device);
    whole_gradients_.emplace_back();
    sums_.push_back(0);
  }
  allocate_weights();
  TORCH_CHECK(
      options.state.places.empty() || options.state.places.size() == units_.size(), "places of state for ",
      options.state.places.size(), " units, of which there are ", units_.size());
  for (int64_t i = 0; options.trainable && i < num_units(); ++i) {
    UnitShard& unit = units_[i];
    const bool is_weights = unit.weights.scalar_type() == at::kFloat && !state_on_host(i);
    unit.master = is_weights ? unit.weights : zeros_of_state(i, at::kFloat);
    if (!is_weights) {
      device::label(unit.master, device::Category::kMaster);
    }
  }
  if (float8_ != nullptr) {
    float8_->allocate();
  }
}

// The weights begin as zeros, so that alignment gaps and the padded tail stay zero in both weights and moments.
void ModelShards::allocate_weights() {
  if (options_.peers == nullptr) {
    for (int64_t i = 0; i < num_units(); ++i) {
      units_[i].weights =
          at::zeros({units_[i].shard.numel}, at::TensorOptions().device(options_.device).dtype(flat_dtype(i)));
    }
    return;
  }
  int64_t bytes = 0;
  for (int64_t i = 0; i < num_units(); ++i) {
    bytes += device::HostSlab::aligned(shard_bytes(i));
  }
  const std::vector<at::Tensor> ranks = options_.peers->allocate(bytes); // all ranks' shards have the same sizes
  int64_t begin = 0;
  for (int64_t i = 0; i < num_units(); ++i) {
    UnitShard& unit = units_[i];
    for (const at::Tensor& rank : ranks) {
      unit.peer_weights.push_back(rank.narrow(0, begin, shard_bytes(i)).view(flat_dtype(i)));
    }
    unit.weights = unit.peer_weights[static_cast<size_t>(options_.rank)];
    begin += device::HostSlab::aligned(shard_bytes(i));
  }
}

int64_t ModelShards::bytes() const {
  int64_t bytes = 0;
  for (int64_t i = 0; i < num_units(); ++i) {
    bytes += shard_bytes(i);
  }
  return bytes;
}

void ModelShards::load(const models::WeightSource& source, const std::function<void(int64_t bytes)>& loaded) {
  models::TakeLargest take_largest;
  if (options_.shard_axis != nullptr) {
    take_largest = [this](at::Tensor values) { options_.shard_axis->all_reduce_max(values); };
  }
  for (int64_t i = 0; i < num_units(); ++i) {
    UnitShard& unit = units_[i];
    at::Tensor target = unit.master.defined() ? unit.master : unit.weights;
    if (unit.layout.packed()) {
      models::read_packed(source, config_, unit.layout, unit.shard.begin, target, take_largest);
    } else if (target.device() != options_.device && source.writes_to(options_.device)) {
      // Generated on the device, so that the values do not depend on where the state is stored.
      at::Tensor made = at::empty(target.sizes(), target.options().device(options_.device));
      source.copy_range(unit.layout, unit.shard.begin, made);
      target.copy_(made);
    } else {
      source.copy_range(unit.layout, unit.shard.begin, target);
    }
    if (loaded) {
      loaded(shard_bytes(i));
    }
  }
  refresh_weights();
}

SlotSize ModelShards::slot_size(int64_t index) const {
  if (units_[index].layout.kind != models::UnitKind::kBlock) {
    return SlotSize::kLarge;
  }
  return base_ != nullptr ? SlotSize::kAdapter : SlotSize::kBlock;
}

void ModelShards::use_slots(WeightSlots* weights, GradientSlots* gradients, Accumulation accumulation) {
  weight_slots_ = weights;
  gradient_slots_ = gradients;
  accumulation_ = accumulation;
  for (int64_t i = 0; i < num_units(); ++i) {
    UnitShard& unit = units_[i];
    const bool rounds_master = unit.master.defined() && !unit.master.is_same(unit.weights) && !in_float8(i);
    if (weights != nullptr && rounds_master && !state_on_host(i) && options_.peers == nullptr) {
      unit.weights.reset();
    }
  }
  weights_changed(); // by loading
}

void ModelShards::add_to_plan(SlotPlan& weights) const {
  for (int64_t i = 0; i < num_units(); ++i) {
    const SlotSize slot = slot_size(i);
    int64_t& bytes = slot == SlotSize::kBlock ? weights.block_bytes
        : slot == SlotSize::kAdapter          ? weights.adapter_bytes
                                              : weights.large_bytes;
    const auto size = options_.may_leave_float8 && in_float8(i)
        ? std::max(element_size(i), static_cast<int64_t>(c10::elementSize(options_.compute_dtype)))
        : element_size(i);
    bytes = std::max(bytes, units_[i].shard.padded_numel * size);
  }
}

UnitSource ModelShards::source(int64_t index) {
  queue_update(index);
  const UnitShard& unit = units_[index];
  UnitSource source;
  source.key = key(index);
  source.size = slot_size(index);
  const bool rounds_master = !unit.weights.defined() || (left_float8_ && float8_->has(index));
  source.shard = rounds_master ? unit.master : unit.weights;
  source.dtype = flat_dtype(index);
  source.peers = rounds_master || unit.peer_weights.empty() ? nullptr : &unit.peer_weights;
  // The gather's stream waits for the unit's newest update even if the compute stream has waited for it already.
  source.updated = state_on_host(index) ? &updates_[index].done : nullptr;
  return source;
}

at::Tensor ModelShards::weights(int64_t index) {
  finish_update(index);
  if (weight_slots_ != nullptr) {
    return weight_slots_->acquire(source(index));
  }
  return left_float8_ && float8_->has(index) ? units_[index].master.to(options_.compute_dtype) : units_[index].weights;
}

bool ModelShards::needs_base(int64_t index) const {
  return base_ != nullptr &&
      std::any_of(
             base_->units_[index].layout.params.begin(), base_->units_[index].layout.params.end(),
             [&](const models::ParamLayout& param) { return units_[index].layout.find(param.name) == nullptr; });
}

at::Tensor ModelShards::parameter(int64_t index, const char* name) {
  at::Tensor own = has(index) ? units_[index].layout.view(weights(index), name) : at::Tensor();
  const at::Tensor frozen = needs_base(index) ? base_->parameter(index, name) : at::Tensor();
  own = own.defined() ? own : frozen;
  TORCH_CHECK(own.defined(), "unit '", units_[index].layout.name, "' has no parameter '", name, "'");
  return own;
}

models::BlockParams ModelShards::block_params(int64_t index) {
  if (base_ != nullptr) {
    models::BlockParams params = base_->block_params(index);
    if (has(index)) {
      models::add_trained(params, models::block_params(units_[index].layout, weights(index)));
    }
    return params;
  }
  const at::Tensor flat = weights(index);
  return in_float8(index) ? float8_->params(index, flat) : models::block_params(units_[index].layout, flat);
}

void ModelShards::release(int64_t index) {
  if (needs_base(index)) {
    base_->release(index);
  }
  if (weight_slots_ != nullptr && has(index)) {
    weight_slots_->release(key(index));
  }
}

void ModelShards::retire(int64_t index) {
  if (needs_base(index)) {
    base_->retire(index);
  }
  if (weight_slots_ != nullptr && has(index)) {
    weight_slots_->retire(key(index));
  }
}

void ModelShards::prefetch(int64_t index) {
  if (needs_base(index)) {
    base_->prefetch(index);
  }
  if (weight_slots_ != nullptr && has(index)) {
    weight_slots_->prefetch(source(index));
  }
}

UnitGradient ModelShards::gradient(int64_t index) {
  UnitShard& unit = units_[index];
  TORCH_CHECK(has(index), "nothing of unit ", index, " is trained");
  TORCH_CHECK(!updates_[index].pending, "unit ", index, " has a new gradient before its update was waited for");
  UnitGradient gradient;
  if (gradient_slots_ != nullptr) {
    const auto slot = gradient_slots_->acquire(key(index), slot_size(index), unit.shard.padded_numel);
    gradient = {slot.flat, slot.is_new};
  } else if (rounds_gradients()) {
    at::Tensor& whole = whole_gradients_[index];
    gradient.is_new = !whole.defined();
    if (gradient.is_new) {
      const device::LabelScope label(device::Category::kSlots);
      whole = at::empty({unit.shard.numel}, at::TensorOptions().dtype(at::kFloat).device(options_.device));
    }
    gradient.flat = whole;
  } else {
    gradient.is_new = !unit.gradient.defined();
    if (gradient.is_new) {
      unit.gradient = new_gradient_shard(unit);
    }
    gradient.flat = unit.gradient;
  }
  if (gradient.is_new) {
    zero_all_but_matrices(index, gradient.flat);
  }
  return gradient;
}

at::Tensor ModelShards::new_gradient_shard(const UnitShard& unit) const {
  at::Tensor gradient =
      at::empty({unit.shard.numel}, at::TensorOptions().dtype(options_.gradient_dtype).device(options_.device));
  device::label(gradient, device::Category::kGradients);
  return gradient;
}

models::RoundingKey ModelShards::next_rounding(int64_t index) {
  return {step_, index, /*draw=*/++sums_[index], units_[index].shard.begin};
}

void ModelShards::zero_all_but_matrices(int64_t index, at::Tensor flat) const {
  int64_t begin = 0;
  for (const models::ParamLayout& param : units_[index].layout.params) { // in the order of their offsets
    if (!param.is_matrix) {
      continue;
    }
    if (param.offset > begin) {
      flat.narrow(0, begin, param.offset - begin).zero_();
    }
    begin = param.offset + param.numel();
  }
  if (flat.numel() > begin) {
    flat.narrow(0, begin, flat.numel() - begin).zero_();
  }
}

void ModelShards::reduce(int64_t index, bool last) {
  if (!has(index)) {
    return;
  }
  if (last) {
    hooks_.backward_is_queued(index);
  }
  UnitShard& unit = units_[index];
  const bool accumulate = unit.gradient.defined();
  sums_[index] = accumulate ? sums_[index] : 0;
  if (gradient_slots_ == nullptr) {
    if (at::Tensor whole = std::exchange(whole_gradients_[index], {}); whole.defined()) {
      unit.gradient = accumulate ? unit.gradient : new_gradient_shard(unit);
      models::add_rounded(unit.gradient, whole, accumulate, next_rounding(index));
    }
    if (last) {
      hooks_.gradient_is_final(index);
    }
    return;
  }
  if (accumulation_ == Accumulation::kKeepFull && !last) {
    return; // not reduced yet: the sum stays in the whole gradient
  }
  if (!accumulate) {
    unit.gradient = new_gradient_shard(unit);
  }
  gradient_slots_->reduce(key(index), unit.gradient, {accumulate, last, next_rounding(index)});
}

void ModelShards::finish_gradients() {
  if (gradient_slots_ != nullptr) {
    gradient_slots_->finish();
    weight_slots_->wait_for_gathers(this);
    for (int64_t i = 0; i < num_units(); ++i) {
      hooks_.gradient_is_final(i);
    }
  }
}

void ModelShards::drop_gradients() {
  for (size_t i = 0; i < units_.size(); ++i) {
    if (!updates_[i].pending) {
      units_[i].gradient.reset();
    }
  }
}

void ModelShards::unit_updated(int64_t index) {
  updates_[index].done.record();
}

void ModelShards::queue_update(int64_t index) {
  if (updates_[index].pending) {
    hooks_.queue_update(index);
  }
}

void ModelShards::finish_update(int64_t index) {
  Update& update = updates_[index];
  if (!update.pending) {
    return;
  }
  {
    const Waiting waiting(update_observer_);
    queue_update(index);
    update.done.wait();
  }
  update.pending = false;
  units_[index].gradient.reset(); // safe after the wait: its memory is reused on the compute stream
}

void ModelShards::finish_updates() {
  for (int64_t i = 0; i < num_units(); ++i) {
    finish_update(i);
  }
}

at::Tensor ModelShards::zeros_of_state(int64_t index, at::ScalarType dtype) const {
  const int64_t numel = units_[index].shard.numel;
  if (!state_on_host(index)) {
    return at::zeros({numel}, at::TensorOptions().dtype(dtype).device(options_.device));
  }
  const auto bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return device::HostSlab::take(options_.state.host, bytes).view(dtype).zero_();
}

void ModelShards::add_state(std::vector<device::MemoryPark::Item>& state) const {
  for (const UnitShard& unit : units_) {
    state.push_back({unit.weights, trainable() ? device::Category::kStudent : device::Category::kTeacher});
    state.push_back({unit.master, device::Category::kMaster});
    state.push_back({unit.gradient, device::Category::kGradients});
  }
  if (base_ != nullptr) {
    base_->add_state(state);
  }
}

at::Tensor ModelShards::gather_master(int64_t index, Communicator* shard_axis) const {
  const UnitShard& unit = units_[index];
  if (shard_axis == nullptr || !has(index)) {
    return unit.master;
  }
  const at::Tensor part = unit.master.to(options_.device);
  at::Tensor whole = at::empty({unit.shard.padded_numel}, part.options());
  shard_axis->all_gather(whole, part);
  return whole;
}

void ModelShards::round_master(int64_t index) {
  UnitShard& unit = units_[index];
  if (unit.master.defined() && unit.weights.defined() && !unit.master.is_same(unit.weights) && !in_float8(index)) {
    unit.weights.copy_(unit.master);
  }
}

void ModelShards::refresh_weights() {
  for (int64_t i = 0; i < num_units(); ++i) {
    round_master(i);
  }
  weights_changed();
}

void ModelShards::refresh_float8() {
  const bool is_alone = options_.world_size == 1;
  if (float8_ == nullptr || (!is_alone && weight_slots_ == nullptr)) { // until use_slots()
    return;
  }
  std::vector<Float8Weights::Part> parts;
  parts.reserve(units_.size());
  for (const UnitShard& unit : units_) {
    parts.push_back({unit.master, unit.weights});
  }
  float8_->refresh(parts, is_alone ? nullptr : &weight_slots_->shard_axis());
}

void ModelShards::leave_float8(bool leave) {
  TORCH_CHECK(float8_ != nullptr && (!leave || options_.may_leave_float8), "the model is not trained in float8");
  left_float8_ = leave;
  if (weight_slots_ != nullptr) {
    weight_slots_->invalidate(this); // gathered units have the other form
  }
}

void ModelShards::weights_changed() {
  refresh_float8();
  if (weight_slots_ != nullptr) {
    weight_slots_->invalidate(this);
  }
}

} // namespace distill::sharding
