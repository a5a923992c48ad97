#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trainer/device/host_slab.h"
#include "trainer/models/activation_policy.h"
#include "trainer/models/block.h"
#include "trainer/sharding/side_stream.h"

namespace distill::sharding {

// The tensors that the blocks of one micro-batch save for their backward passes, each block under its own policy.
// Copies of offloaded tensors to host memory overlap with the forward passes that follow; the copies back are
// prefetched one block before they are needed. Each direction has a stream of its own. On the CPU the copies are made
// at once, by the same code.
//
// Device memory of an offloaded block returns to the allocator once the compute stream waits for its copy, which it
// does when the next block is to leave, or at the end of the forward pass. Tensors that come back are made on the
// compute stream, and their copy waits for what that stream did with the memory before.
class ActivationStore {
 public:
  // `host`: as much of it is left as the memory plan says; null where nothing is offloaded.
  ActivationStore(
      std::vector<models::ActivationPolicy> policies, at::Device device, std::shared_ptr<device::HostSlab> host);

  models::ActivationPolicy policy(int64_t block) const {
    return policies_[block];
  }

  // After a block's forward pass, in forward order.
  void put(int64_t block, models::BlockSaved saved);
  // After the last one: nothing that was offloaded is on the device any more.
  void finish_forward();
  // Starts the block's way back; nothing for blocks that stayed.
  void prefetch(int64_t block);
  // Before a block's backward pass; the store forgets it.
  models::BlockSaved take(int64_t block);

 private:
  // One tensor in host memory.
  struct Away {
    at::Tensor bytes; // uint8, a piece of the slab
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes, strides;
  };
  struct Stored {
    models::BlockSaved saved; // on the device, or empty while it is away
    std::vector<Away> away; // of BlockSaved::all()
    bool is_away = false;
    bool is_returning = false;
    Fence arrived;

    explicit Stored(at::Device device) : arrived(device) {}
  };
  at::Tensor host_view(const Away& away) const;
  void send_away(Stored& stored);

  std::vector<models::ActivationPolicy> policies_;
  std::shared_ptr<device::HostSlab> host_;
  at::Device device_;
  SideStream out_, in_;
  Fence computed_, left_, allocated_;
  std::vector<Stored> blocks_;
  std::optional<models::BlockSaved> leaving_; // copied at this moment
};

} // namespace distill::sharding
