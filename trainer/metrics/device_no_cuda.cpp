#include "trainer/metrics/device.h"
#include "trainer/metrics/host_memory.h"

namespace distill::metrics {

int64_t cuda_device_count() {
  return 0;
}

DeviceInfo device_info(at::Device device) {
  return {"CPU", 0, host_memory_bytes()};
}

int64_t peak_memory_bytes(at::Device device) {
  return peak_resident_bytes();
}

int64_t peak_reserved_bytes(at::Device device) {
  return 0;
}

void reset_peak_memory(at::Device device) {}

ForbidSynchronization::ForbidSynchronization(bool active) : active_(active) {}

ForbidSynchronization::~ForbidSynchronization() = default;

void synchronize(at::Device device) {}

} // namespace distill::metrics
