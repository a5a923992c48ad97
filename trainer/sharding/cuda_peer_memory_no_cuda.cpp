#include "trainer/sharding/cuda_peer_memory.h"

namespace distill::sharding {

std::unique_ptr<PeerMemory> cuda_peer_memory(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int64_t rank, int64_t size,
    at::Device device) {
  TORCH_CHECK(false, "this build of distill has no CUDA; build the release preset with a CUDA toolkit");
}

std::string peer_access_problem(at::Device device, const std::vector<int64_t>& devices) {
  return "this build of distill has no CUDA";
}

} // namespace distill::sharding
