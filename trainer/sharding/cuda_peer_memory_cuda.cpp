#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include <cstdlib>
#include <set>

#include "trainer/device/memory_tracker.h"
#include "trainer/sharding/cuda_peer_memory.h"

namespace distill::sharding {
namespace {

namespace symmetric = c10d::symmetric_memory;

// The end of the process frees this memory. Freeing it earlier would wait for the device, which does not return if
// another rank is gone in the middle of a collective.
std::vector<std::pair<at::Tensor, c10::intrusive_ptr<symmetric::SymmetricMemory>>>& never_freed() {
  static auto* const memory = new std::vector<std::pair<at::Tensor, c10::intrusive_ptr<symmetric::SymmetricMemory>>>;
  return *memory;
}

class CudaPeerMemory : public PeerMemory {
 public:
  CudaPeerMemory(
      const c10::intrusive_ptr<c10d::Store>& store, std::string name, int64_t rank, int64_t size, at::Device device)
      : name_(std::move(name)),
        rank_(rank),
        device_(device),
        group_(c10::make_intrusive<c10d::ProcessGroup>(store, static_cast<int>(rank), static_cast<int>(size))) {
    c10d::register_process_group(name_, group_);
  }
  ~CudaPeerMemory() override {
    c10d::unregister_process_group(name_);
  }
  CudaPeerMemory(const CudaPeerMemory&) = delete;
  CudaPeerMemory& operator=(const CudaPeerMemory&) = delete;

  std::vector<at::Tensor> allocate(int64_t bytes) override {
    const c10::cuda::CUDAGuard guard(device_);
    const at::Tensor memory = symmetric::empty_strided_p2p(
        {bytes}, {1}, at::kByte, device_, /*group_name=*/std::nullopt, /*alloc_id=*/std::nullopt);
    const auto mapped = symmetric::rendezvous(memory, name_);
    never_freed().emplace_back(memory, mapped);
    device::count_outside(memory.data_ptr(), bytes);
    std::vector<at::Tensor> parts;
    for (void* data : mapped->get_buffer_ptrs()) {
      const bool is_own = static_cast<int64_t>(parts.size()) == rank_;
      const auto release = [is_own](void* released) {
        if (is_own) {
          device::release_outside(released);
        }
      };
      // The pointer's own device is the other rank's, while this rank's device is the one that reads it.
      parts.push_back(at::for_blob(data, {bytes})
                          .deleter(release)
                          .options(at::TensorOptions().dtype(at::kByte).device(device_))
                          .target_device(device_)
                          .make_tensor());
    }
    return parts;
  }

 private:
  std::string name_;
  int64_t rank_;
  at::Device device_;
  // Libtorch finds it by its name, and uses its store alone; the registry does not own it.
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

} // namespace

std::unique_ptr<PeerMemory> cuda_peer_memory(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int64_t rank, int64_t size,
    at::Device device) {
  ::setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1", /*overwrite=*/1);
  const auto backend = symmetric::get_backend(device);
  TORCH_CHECK(
      !backend || *backend == "CUDA", "libtorch's symmetric memory is that of ", *backend,
      ", and only its CUDA backend maps plain memory; unset TORCH_SYMMMEM");
  return std::make_unique<CudaPeerMemory>(store, name, rank, size, device);
}

std::string peer_access_problem(at::Device device, const std::vector<int64_t>& devices) {
  if (std::set<int64_t>(devices.begin(), devices.end()).size() < devices.size()) {
    return "several ranks know their GPU by the same number (CUDA_VISIBLE_DEVICES differs between them); let every "
           "rank see all GPUs of the host";
  }
  for (const int64_t other : devices) {
    if (other == device.index()) {
      continue;
    }
    int access = 0;
    if (other >= c10::cuda::device_count() ||
        cudaDeviceCanAccessPeer(&access, device.index(), static_cast<int>(other)) != cudaSuccess || access == 0) {
      (void)cudaGetLastError();
      return absl::StrCat("GPU ", device.index(), " cannot read the memory of GPU ", other);
    }
  }
  return "";
}

} // namespace distill::sharding
