#include "trainer/config/dtypes.h"

#include "trainer/config/teachers.h"

namespace distill::config {

at::ScalarType scalar_type(RunDtype dtype, at::ScalarType automatic) {
  switch (dtype) {
    case RunDtype::kAuto:
      break;
    case RunDtype::kFloat32:
      return at::kFloat;
    case RunDtype::kBFloat16:
      return at::kBFloat16;
  }
  return automatic;
}

at::ScalarType scalar_type(ComputeDtype dtype, at::ScalarType automatic) {
  switch (dtype) {
    case ComputeDtype::kAuto:
    case ComputeDtype::kFloat8: // everything but the blocks' products
      break;
    case ComputeDtype::kFloat32:
      return at::kFloat;
    case ComputeDtype::kBFloat16:
      return at::kBFloat16;
  }
  return automatic;
}

at::ScalarType scalar_type(ReduceDtype dtype) {
  return dtype == ReduceDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

at::ScalarType scalar_type(RoundedDtype dtype) {
  return dtype == RoundedDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

int64_t gradient_bytes(const OptimizerSection& optimizer) {
  return static_cast<int64_t>(c10::elementSize(scalar_type(optimizer.gradients)));
}

int64_t state_bytes(const OptimizerSection& optimizer) {
  return static_cast<int64_t>(c10::elementSize(at::kFloat) + 2 * c10::elementSize(scalar_type(optimizer.moments)));
}

at::ScalarType scalar_type(StoredDtype dtype, const models::ModelConfig& model) {
  switch (dtype == StoredDtype::kAuto ? *base::enum_named<StoredDtype>(model.dtype) : dtype) {
    case StoredDtype::kAuto:
    case StoredDtype::kFloat32:
      break;
    case StoredDtype::kBFloat16:
      return at::kBFloat16;
    case StoredDtype::kFloat16:
      return at::kHalf;
  }
  return at::kFloat;
}

absl::Status check_float8_products(const Config& config, bool has_float8, const std::string& device) {
  for (const auto& [name, model] : models_of_run(config)) {
    if (model.dtype == ComputeDtype::kFloat8 && !has_float8) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s.dtype: float8: expected a GPU of compute capability 8.9 or newer, found %s, which has no float8 products; "
          "set %s.dtype to bfloat16",
          name, device, name));
    }
  }
  return absl::OkStatus();
}

} // namespace distill::config
