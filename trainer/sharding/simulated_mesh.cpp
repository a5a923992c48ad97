#include "trainer/sharding/simulated_mesh.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "trainer/device/simulation.h"

namespace distill::sharding {
namespace {

class SimulatedCommunicator : public Communicator {
 public:
  explicit SimulatedCommunicator(int64_t size) : size_(size) {}

  int64_t rank() const override {
    return 0;
  }
  int64_t size() const override {
    return size_;
  }
  void all_gather(at::Tensor /*full*/, const at::Tensor& /*shard*/) override {}
  void reduce_scatter(at::Tensor /*shard*/, const at::Tensor& full) override {
    if (device::runs_on_cpu(full)) {
      at::empty_like(full); // Gloo reduces a copy of its input
    }
  }
  void all_reduce(at::Tensor /*tensor*/) override {}
  void all_reduce_max(at::Tensor /*tensor*/) override {}
  void broadcast(at::Tensor /*tensor*/, int64_t /*root*/) override {}
  void shutdown() override {}

 private:
  int64_t size_;
};

// This memory is counted once: the other ranks' memory is theirs.
class SimulatedPeerMemory : public PeerMemory {
 public:
  explicit SimulatedPeerMemory(int64_t size) : size_(size) {}

  std::vector<at::Tensor> allocate(int64_t bytes) override {
    const device::DirectMemoryScope directly;
    const at::Tensor own = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
    return std::vector<at::Tensor>(static_cast<size_t>(size_), own);
  }

 private:
  int64_t size_;
};

} // namespace

std::unique_ptr<Mesh> simulated_mesh(int64_t shard, int64_t replicate, bool shared_memory) {
  auto mesh = std::make_unique<Mesh>();
  mesh->world_size = shard * replicate;
  mesh->shard_size = shard;
  mesh->replicate_size = replicate;
  if (mesh->world_size > 1) {
    const auto group = [](int64_t size) { return std::make_unique<SimulatedCommunicator>(size); };
    mesh->gather = group(shard);
    mesh->reduce = group(shard);
    if (replicate > 1) {
      mesh->replicate = group(replicate);
    }
    mesh->world = group(mesh->world_size);
    if (shared_memory) {
      mesh->peers = std::make_unique<SimulatedPeerMemory>(shard);
    }
  }
  return mesh;
}

} // namespace distill::sharding
