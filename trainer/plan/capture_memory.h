#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/device/memory_use.h"
#include "trainer/plan/run_shape.h"

namespace distill::plan {

// What one rank of a capture takes: the teacher, its pass over a micro-batch, the rows that are made of it.
struct CaptureMemory {
  device::MemoryUse use; // of tensors on the device
  int64_t static_bytes = 0; // of the teacher's shards
  int64_t slack = 0; // held by the allocator for no tensor at the peak
  int64_t communicators = 0;
  int64_t context = 0; // driver and libraries
  int64_t available_bytes = 0; // of the device, or what memory.limit_gib allows
  int64_t host_rows = 0; // pinned rows on the way to the disk

  int64_t peak() const {
    return use.peak();
  }
  int64_t device_bytes() const {
    return peak() + slack + communicators + context;
  }
  // "memory plan: 1.2 GiB of tensors at the peak (...)", and of what they are.
  std::vector<std::string> lines() const;
};

// Runs the capture of two micro-batches on meta tensors. `rows`: what is stored; `device_bytes`: of one rank's device.
// InvalidArgument names the key; also where loss.memory_cap_mb is too small for making the rows.
absl::StatusOr<CaptureMemory> predict_capture(
    const config::Config& config, const models::ModelConfig& teacher, const teacher_cache::RowFormat& rows,
    const Target& target, bool teacher_stream, int64_t device_bytes);

// OutOfRange: the plan does not fit, with both numbers and what takes less.
absl::Status check_fits(const CaptureMemory& memory);

} // namespace distill::plan
