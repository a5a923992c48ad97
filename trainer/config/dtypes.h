#pragma once

#include <absl/status/status.h>
#include <c10/core/ScalarType.h>

#include "trainer/config/config.h"
#include "trainer/models/model_config.h"

// The ATen dtypes of the configuration's dtypes.
namespace distill::config {

// `automatic`: what auto stands for.
at::ScalarType scalar_type(RunDtype dtype, at::ScalarType automatic);
at::ScalarType scalar_type(ComputeDtype dtype, at::ScalarType automatic);
at::ScalarType scalar_type(ReduceDtype dtype);
at::ScalarType scalar_type(RoundedDtype dtype);
// auto stands for the dtype that the model's folder is stored in.
at::ScalarType scalar_type(StoredDtype dtype, const models::ModelConfig& model);

// FailedPrecondition where a model's dtype is float8 and the device has no float8 products. `device`: its name.
absl::Status check_float8_products(const Config& config, bool has_float8, const std::string& device);

// Bytes of the optimizer's state for each parameter: its fp32 master weight and both moments.
int64_t state_bytes(const OptimizerSection& optimizer);

// Bytes of the gradient shard for each parameter.
int64_t gradient_bytes(const OptimizerSection& optimizer);

} // namespace distill::config
