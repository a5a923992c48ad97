#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>

namespace distill::device {

// Copies host memory, by several threads where it is large: a single thread reaches only a fraction of the host's
// bandwidth.
void copy_on_host(void* to, const void* from, int64_t bytes);

// One range of host memory for the life of the run, for tensors that are not stored on the device. On CUDA it lies on
// the device's NUMA node and is pinned; every page is touched at the start. The memory is anonymous, so that it is
// freed when the process ends in any way.
class HostSlab {
 public:
  // `what`: the configuration keys that require it. ResourceExhausted where the host has less than `bytes` for each of
  // `processes_on_host`, with both numbers; nothing was taken then.
  static absl::StatusOr<std::shared_ptr<HostSlab>> allocate(
      int64_t bytes, at::Device device, int64_t processes_on_host, const std::string& what);
  ~HostSlab();
  HostSlab(const HostSlab&) = delete;
  HostSlab& operator=(const HostSlab&) = delete;

  // Host memory of a simulated run: it has no memory and no limit, and only counts the bytes that are taken from it.
  static std::shared_ptr<HostSlab> simulated();

  // The next `bytes` as a uint8 tensor, aligned to kAlignment; its storage owns the slab. Throws if the slab is used
  // up.
  static at::Tensor take(const std::shared_ptr<HostSlab>& slab, int64_t bytes);

  int64_t bytes() const {
    return bytes_;
  }
  int64_t used() const { // bytes that were taken, alignment included
    return used_;
  }

  static constexpr int64_t kAlignment = 512;
  static int64_t aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

 private:
  HostSlab(char* data, int64_t bytes, bool pinned) : data_(data), bytes_(bytes), pinned_(pinned) {}

  char* data_; // null: simulated
  int64_t bytes_;
  bool pinned_;
  int64_t used_ = 0;
};

} // namespace distill::device
