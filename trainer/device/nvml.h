#pragma once

#include <cstdint>
#include <optional>
#include <string>

// NVIDIA's management library, libnvidia-ml.so, which comes with the driver. It is opened when it is asked, and nothing
// is known where it is not there.
namespace distill::device {

// Bytes of the GPU with this PCI bus id that all processes use, apart from what the driver has set aside.
std::optional<int64_t> nvml_used_bytes(const std::string& pci_bus_id);

// "580.95.05"; empty: unknown.
std::string nvidia_driver_version();

} // namespace distill::device
