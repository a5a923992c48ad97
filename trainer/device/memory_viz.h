#pragma once

#include <string>
#include <vector>

#include "trainer/device/memory_tracker.h"

namespace distill::device {

// Writes the tracker's events as the pickle that PyTorch's memory_viz opens (https://pytorch.org/memory_viz, or
// torch.cuda._memory_viz): a history of allocations, each with its category and phase as its stack. It is for the CPU;
// on CUDA the caching allocator's own snapshot has more (device_hooks.h).
std::string memory_viz_pickle(const std::vector<MemoryEvent>& events);

} // namespace distill::device
