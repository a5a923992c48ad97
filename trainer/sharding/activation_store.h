#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "trainer/device/host_slab.h"
#include "trainer/models/activation_policy.h"
#include "trainer/models/block.h"
#include "trainer/sharding/side_stream.h"

namespace distill::sharding {

// What the blocks of one micro-batch keep between their forward and their backward pass, each under its own policy.
// Offloaded tensors leave for host memory beside the forward passes that follow and come back one block ahead of their
// backward pass, on two streams of their own. On the CPU the copies are made at once, by the same code.
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
  void put(int64_t block, models::BlockKept kept);
  // After the last one: nothing that was offloaded is on the device any more.
  void finish_forward();
  // Starts the block's way back; nothing for blocks that stayed.
  void prefetch(int64_t block);
  // Before a block's backward pass; the store forgets it.
  models::BlockKept take(int64_t block);

 private:
  // One tensor in host memory.
  struct Away {
    at::Tensor bytes; // uint8, a piece of the slab
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes, strides;
  };
  struct Stored {
    models::BlockKept kept; // on the device, or empty while it is away
    std::vector<Away> away; // of BlockKept::places()
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
  std::optional<models::BlockKept> leaving_; // copied at this moment
};

} // namespace distill::sharding
