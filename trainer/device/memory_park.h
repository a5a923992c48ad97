#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <memory>
#include <vector>

#include "trainer/device/host_slab.h"
#include "trainer/device/memory_use.h"

namespace distill::device {

// Gives the memory of a device's tensors back to it for a while, and keeps their contents in host memory meanwhile,
// which is pinned on CUDA and kept for the next time. The tensors and all of their views stay valid objects, but have
// no memory until it is restored; it then lies at another address.
class MemoryPark {
 public:
  struct Item {
    at::Tensor tensor; // of its whole storage
    Category category;
  };

  // `processes_on_host`: that park at the same time, and divide the host's memory.
  MemoryPark(at::Device device, int64_t processes_on_host) : device_(device), processes_on_host_(processes_on_host) {}
  MemoryPark(const MemoryPark&) = delete;
  MemoryPark& operator=(const MemoryPark&) = delete;

  // Waits for the device, moves the contents to host memory, and frees the device's, the allocator's free memory
  // included. Tensors that are undefined, on another device, or in memory that the device's allocator has not handed
  // out stay as they are. ResourceExhausted: the host has too little memory; nothing was moved.
  absl::Status park(const std::vector<Item>& items);
  // Moves everything back, bit for bit. ResourceExhausted: the device has no room for it; it stays in host memory.
  absl::Status restore();

  bool parked() const {
    return parked_;
  }
  int64_t bytes() const { // of the device's memory, that were moved last
    return bytes_;
  }

 private:
  struct Part {
    at::Tensor tensor; // keeps the storage
    Category category;
    int64_t bytes = 0;
    at::Tensor host; // uint8
  };

  at::Device device_;
  int64_t processes_on_host_;
  std::shared_ptr<HostSlab> slab_;
  std::vector<Part> parts_; // one for each storage; with their host memory from one time to the next
  bool parked_ = false;
  int64_t bytes_ = 0;
};

} // namespace distill::device
