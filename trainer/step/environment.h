#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "trainer/device/allocator_kind.h"
#include "trainer/device/outside_memory.h"

namespace distill::trainer {

// Where and in which precision a run computes. setup/resolve_environment.h settles it from the configuration.
struct Environment {
  at::Device device = at::kCPU;
  at::ScalarType student_dtype = at::kFloat;
  at::ScalarType teacher_dtype = at::kFloat; // of several teachers: environment_of_teacher()
  device::AllocatorSettings allocator = {}; // of a GPU
  std::optional<device::OutsideMemory> outside = std::nullopt; // of a GPU, measured; nullopt: it was not
  at::ScalarType run_dtype = at::kFloat; // of models for which the configuration names none
};

} // namespace distill::trainer
