#include "trainer/plan/memory_limits.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

namespace distill::plan {

using device::bytes_text;

int64_t usable_bytes(const config::MemorySection& memory, int64_t device_bytes) {
  constexpr double kGiB = 1 << 30;
  const auto limit = static_cast<int64_t>(memory.limit_gib * kGiB);
  return limit > 0 && (device_bytes == 0 || limit < device_bytes) ? limit : device_bytes;
}

std::vector<std::string> overflows_of(const MemoryPrediction& memory, const MemoryLimits& limits) {
  std::vector<std::string> overflows;
  const auto check = [&](int64_t needed, int64_t limit, const std::string& what) {
    if (limit > 0 && needed > limit) {
      overflows.push_back(
          absl::StrCat(what, ": ", bytes_text(needed), " are predicted, ", bytes_text(limit), " are there"));
    }
  };
  check(memory.peak(), limits.tensors, "memory.budget_gib");
  check(memory.device_bytes(), limits.device, "device memory");
  check(memory.host_bytes(), limits.host, "host memory of a rank");
  return overflows;
}

std::vector<std::string> memory_lines(const MemoryPrediction& memory, const MemoryLimits& limits) {
  const device::MemoryPhase phase = memory.use.peak_phase();
  const device::PhasePeak& peak = memory.use.phases[static_cast<size_t>(phase)];
  std::vector<std::string> parts;
  for (size_t i = 0; i < device::kNumCategories; ++i) {
    if (peak.at_peak[i] > 0) {
      parts.push_back(
          absl::StrCat(device::category_name(static_cast<device::Category>(i)), " ", bytes_text(peak.at_peak[i])));
    }
  }
  std::vector<std::string> lines = {
      absl::StrFormat(
          "memory plan: %s of tensors at the peak (%s), %s of %s of device memory%s; %s pinned on the host",
          bytes_text(memory.peak()), device::phase_name(phase), bytes_text(memory.device_bytes()),
          bytes_text(limits.device), limits.tensors > 0 ? ", budget " + bytes_text(limits.tensors) : "",
          bytes_text(memory.host_bytes())),
      "memory plan: " + absl::StrJoin(parts, ", ")};
  if (memory.outside.total() > 0) {
    lines.push_back("memory plan: " + memory.outside.text());
  }
  if (memory.give_backs > 0) {
    lines.push_back(absl::StrFormat(
        "memory plan: the device is full %d time(s) in a step; the allocator then returns its free memory to the device, "
        "which takes time that is not predicted",
        memory.give_backs));
  }
  return lines;
}

} // namespace distill::plan
