#pragma once

#include <absl/status/statusor.h>
#include <c10/core/ScalarType.h>

#include <memory>
#include <string>

#include "trainer/hf/peft_config.h"
#include "trainer/hf/save_model.h"
#include "trainer/models/weight_source.h"

// The folder of an adapter, as peft writes and reads it: adapter_config.json and adapter_model.safetensors.
namespace distill::hf {

inline constexpr const char* kPeftWeights = "adapter_model.safetensors";

// Opens the tensors of trained_layouts(config), config.adapter being what the folder's adapter_config.json resolves to.
// Tensors are found by the names of all versions of peft: with and without the name of the adapter ("default"), with
// and without "modules_to_save". `base`: the fingerprint of the base's folder; a folder that was written by this
// program says which base it belongs to. InvalidArgument lists the tensors that are missing, unexpected or of another
// shape.
absl::StatusOr<std::unique_ptr<models::WeightSource>> open_adapter(
    const std::string& folder, const models::ModelConfig& config, const std::string& base);

struct SaveAdapterOptions {
  at::ScalarType dtype = at::kFloat; // of the stored weights
  std::string base; // the fingerprint of the base's folder
  bool replace = false; // as of SaveOptions
};

// Writes such a folder, with checksums.xxh3. `units`: of trained_layouts(config), as for save_model.
absl::Status save_adapter(
    const std::string& target, const PeftConfig& peft, const models::ModelConfig& config, const UnitFlat& units,
    const SaveAdapterOptions& options);

// Adds a unit's adapters to its weights, and puts those in their place that are trained as a whole. `flat` and
// `trained`: flat buffers of the unit in unit_layouts() and in trained_layouts(), fp32, on one device.
void merge_adapter(
    const models::UnitLayout& layout, const at::Tensor& flat, const models::UnitLayout& trained_layout,
    const at::Tensor& trained);

// The flat buffers of a model whose adapters are merged: `base` has the frozen weights, `trained` the units of
// trained_layouts(config). For save_model, with a config without the adapter.
UnitFlat merged_units(
    const models::ModelConfig& config, std::shared_ptr<const models::WeightSource> base, UnitFlat trained);

} // namespace distill::hf
