#include "trainer/device/nvml.h"

#include <dlfcn.h>

#include <array>

namespace distill::device {
namespace {

// nvmlMemory_v2_t of nvml.h
struct MemoryInfo {
  unsigned version = sizeof(MemoryInfo) | (2U << 24U);
  unsigned long long total = 0, reserved = 0, free = 0, used = 0; // bytes
};
using Device = void*;

template <typename Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

// The library, initialised once and never closed; null: it is not there.
void* library() {
  static void* const opened = []() -> void* {
    void* handle = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    int (*init)() = nullptr;
    return handle != nullptr && find(handle, "nvmlInit_v2", init) && init() == 0 ? handle : nullptr;
  }();
  return opened;
}

} // namespace

std::optional<int64_t> nvml_used_bytes(const std::string& pci_bus_id) {
  int (*device_of)(const char*, Device*) = nullptr;
  int (*memory_of)(Device, MemoryInfo*) = nullptr;
  Device device = nullptr;
  MemoryInfo info;
  if (library() == nullptr || !find(library(), "nvmlDeviceGetHandleByPciBusId_v2", device_of) ||
      !find(library(), "nvmlDeviceGetMemoryInfo_v2", memory_of) || device_of(pci_bus_id.c_str(), &device) != 0 ||
      memory_of(device, &info) != 0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(info.used);
}

std::string nvidia_driver_version() {
  int (*version_of)(char*, unsigned) = nullptr;
  std::array<char, 80> version{};
  if (library() == nullptr || !find(library(), "nvmlSystemGetDriverVersion", version_of) ||
      version_of(version.data(), version.size()) != 0) {
    return "";
  }
  return version.data();
}

} // namespace distill::device
