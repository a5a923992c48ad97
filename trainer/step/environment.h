#pragma once

#include <ATen/core/Tensor.h>

namespace distill::trainer {

// Where and in which precision a run computes. setup/resolve_environment.h settles it from the configuration.
struct Environment {
  at::Device device = at::kCPU;
  at::ScalarType student_dtype = at::kFloat;
  at::ScalarType teacher_dtype = at::kFloat;
};

} // namespace distill::trainer
