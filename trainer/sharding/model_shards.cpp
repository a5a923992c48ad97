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

at::Tensor ModelShards::weights(int64_t index) {
  return units_[index].weights;
}

void ModelShards::release(int64_t index) {}

at::Tensor ModelShards::gradient(int64_t index) {
  return units_[index].gradient;
}

void ModelShards::reduce(int64_t index) {}

void ModelShards::zero_gradients() {
  for (UnitShard& unit : units_) {
    unit.gradient.zero_();
  }
}

void ModelShards::refresh_weights() {
  for (UnitShard& unit : units_) {
    if (unit.master.defined() && !unit.master.is_same(unit.weights)) {
      unit.weights.copy_(unit.master);
    }
  }
}

} // namespace distill::sharding
