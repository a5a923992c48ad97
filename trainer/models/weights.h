#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/models/layout.h"
#include "trainer/models/model_config.h"

// Where a model's first weights come from: a Hugging Face folder, or a seed. Both give any range of a unit's flat
// buffer, so that a process reads only its shard, and loading needs no memory beyond the model's own.
namespace distill::models {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Elements [flat_begin, flat_begin + dst.numel()) of the unit's flat buffer, converted to dst's dtype. Alignment gaps
  // and everything past layout.numel become zero. dst: one-dimensional, contiguous, floating point, on any device.
  void copy_range(const UnitLayout& layout, int64_t flat_begin, at::Tensor dst) const;

  // Whether the values come into being on this device; others get theirs by way of the host.
  virtual bool writes_to(at::Device device) const {
    return device.is_cpu();
  }

 protected:
  // Elements [first, first + dst.numel()) of one Hugging Face tensor into a contiguous one on a device that writes_to()
  // says.
  virtual void copy_tensor(const FlatPiece& piece, int64_t first, at::Tensor dst) const = 0;
};

// Maps folder/model.safetensors, or the shards that folder/model.safetensors.index.json lists, and checks every tensor
// against `config`: missing, unexpected and wrongly shaped ones are listed by name in one error. Extras that are known
// to be harmless (rotary inv_freq, the head of a tied model) are noted in `notes`.
absl::StatusOr<std::unique_ptr<WeightSource>> open_weights(
    const std::string& folder, const ModelConfig& config, std::vector<std::string>* notes = nullptr);

// Matrices from normal(0, config.initializer_range), norms 1, biases 0. A value depends on the seed, the Hugging Face
// name and the element alone: not on ranks, ranges, order or dtype (before rounding). A GPU makes them itself; they
// differ from the CPU's in the last bits.
std::unique_ptr<WeightSource> random_weights(const ModelConfig& config, uint64_t seed);

} // namespace distill::models
