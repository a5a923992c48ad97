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

absl::Status ModelShards::load(const FillRange& fill) {
  constexpr int64_t kChunk = int64_t{1} << 24; // elements staged on the host at a time
  for (UnitShard& unit : units_) {
    const at::Tensor& destination = unit.master.defined() ? unit.master : unit.weights;
    const int64_t last = std::min(unit.shard.end(), unit.layout.numel);
    for (int64_t first = unit.shard.begin; first < last; first += kChunk) {
      const int64_t count = std::min(kChunk, last - first);
      at::Tensor part = destination.narrow(0, first - unit.shard.begin, count);
      if (destination.is_cpu()) {
        if (absl::Status status = fill(unit.layout, first, part); !status.ok()) {
          return status;
        }
      } else {
        at::Tensor staged = at::empty({count}, destination.options().device(at::kCPU));
        if (absl::Status status = fill(unit.layout, first, staged); !status.ok()) {
          return status;
        }
        part.copy_(staged);
      }
    }
  }
  refresh_weights();
  return absl::OkStatus();
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
