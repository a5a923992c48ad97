#pragma once

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/plan/memory_prediction.h"

// Comparison of a memory prediction with the memory that there is, for training runs and captures.
namespace distill::plan {

// Limits of the bytes that one rank may take; 0: there is no limit.
struct MemoryLimits {
  int64_t tensors = 0; // at the peak, memory.budget_gib
  int64_t device = 0;
  int64_t host = 0;
};

// A device's memory, or memory.limit_gib where that is less. `device_bytes` 0: unknown.
int64_t usable_bytes(const config::MemorySection& memory, int64_t device_bytes);

// A sentence for each limit that the prediction exceeds.
std::vector<std::string> overflows_of(const MemoryPrediction& memory, const MemoryLimits& limits);

// "memory plan: 1.2 GiB of tensors at the peak (head), ...", and the line of what these tensors are.
std::vector<std::string> memory_lines(const MemoryPrediction& memory, const MemoryLimits& limits);

} // namespace distill::plan
