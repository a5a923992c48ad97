#include "trainer/sharding/model_shards.h"

namespace distill::sharding {

ModelShards::ModelShards(models::ModelConfig config, const ShardOptions& options)
    : config_(std::move(config)), options_(options) {
  const auto host_or_device = at::TensorOptions().device(options.device);
  for (models::UnitLayout& layout : models::unit_layouts(config_)) {
    UnitShard unit;
    unit.shard = shard_range(layout.numel, options.rank, options.world_size);
    unit.layout = std::move(layout);
    // Zeros, so that alignment gaps and the padded tail stay zero in weights, gradients and moments alike.
    unit.weights = at::zeros({unit.shard.numel}, host_or_device.dtype(options.compute_dtype));
    if (options.trainable) {
      unit.master = options.compute_dtype == at::kFloat
          ? unit.weights
          : at::zeros({unit.shard.numel}, host_or_device.dtype(at::kFloat));
      unit.gradient = at::zeros({unit.shard.numel}, host_or_device.dtype(at::kFloat));
    }
    units_.push_back(std::move(unit));
  }
}

void ModelShards::load(const models::WeightSource& source) {
  for (UnitShard& unit : units_) {
    source.copy_range(unit.layout, unit.shard.begin, unit.master.defined() ? unit.master : unit.weights);
  }
  refresh_weights();
}

int64_t ModelShards::num_parameters() const {
  int64_t total = 0;
  for (const UnitShard& unit : units_) {
    for (const models::ParamLayout& param : unit.layout.params) {
      total += param.numel();
    }
  }
  return total;
}

SlotSize ModelShards::slot_size(int64_t index) const {
  return units_[index].layout.kind == models::UnitKind::kBlock ? SlotSize::kBlock : SlotSize::kLarge;
}

void ModelShards::add_to_plan(SlotPlan& weights, SlotPlan& gradients) const {
  for (int64_t i = 0; i < num_units(); ++i) {
    const int64_t numel = units_[i].shard.padded_numel;
    const bool block = slot_size(i) == SlotSize::kBlock;
    int64_t& weight_bytes = block ? weights.block_bytes : weights.large_bytes;
    weight_bytes = std::max(weight_bytes, numel * static_cast<int64_t>(c10::elementSize(options_.compute_dtype)));
    if (options_.trainable) {
      int64_t& gradient_bytes = block ? gradients.block_bytes : gradients.large_bytes;
      gradient_bytes = std::max(gradient_bytes, numel * static_cast<int64_t>(sizeof(float)));
    }
  }
}

at::Tensor ModelShards::weights(int64_t index) {
  const at::Tensor& shard = units_[index].weights;
  return weight_slots_ != nullptr ? weight_slots_->acquire(key(index), slot_size(index), shard) : shard;
}

void ModelShards::release(int64_t index) {
  if (weight_slots_ != nullptr) {
    weight_slots_->release(key(index));
  }
}

void ModelShards::prefetch(int64_t index) {
  if (weight_slots_ != nullptr) {
    weight_slots_->prefetch(key(index), slot_size(index), units_[index].weights);
  }
}

at::Tensor ModelShards::gradient(int64_t index) {
  UnitShard& unit = units_[index];
  return gradient_slots_ != nullptr ? gradient_slots_->acquire(key(index), slot_size(index), unit.shard.padded_numel)
                                    : unit.gradient;
}

void ModelShards::reduce(int64_t index) {
  UnitShard& unit = units_[index];
  if (gradient_slots_ != nullptr) {
    gradient_slots_->reduce(key(index), unit.gradient, /*accumulate=*/unit.has_gradient);
    unit.has_gradient = true;
  }
}

void ModelShards::finish_gradients() {
  if (gradient_slots_ != nullptr) {
    gradient_slots_->finish();
    weight_slots_->wait_for_gathers();
  }
}

at::Tensor ModelShards::gather_master(int64_t index, Communicator* shard_axis) const {
  const UnitShard& unit = units_[index];
  if (shard_axis == nullptr) {
    return unit.master;
  }
  at::Tensor whole = at::empty({unit.shard.padded_numel}, unit.master.options());
  shard_axis->all_gather(whole, unit.master);
  return whole;
}

void ModelShards::zero_gradients() {
  for (UnitShard& unit : units_) {
    unit.has_gradient = false;
    if (gradient_slots_ == nullptr) {
      unit.gradient.zero_();
    }
  }
}

void ModelShards::refresh_weights() {
  for (UnitShard& unit : units_) {
    if (unit.master.defined() && !unit.master.is_same(unit.weights)) {
      unit.weights.copy_(unit.master);
    }
  }
  weights_changed();
}

void ModelShards::weights_changed() {
  if (weight_slots_ != nullptr) {
    weight_slots_->invalidate(this);
  }
}

} // namespace distill::sharding
