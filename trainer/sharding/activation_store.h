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
// The compute stream waits for the copy of an offloaded block when the next block is offloaded, or at the end of the
// forward pass; then the block's device memory returns to the allocator. Prefetched tensors are allocated on the
// compute stream, and the copies into them wait for that stream's earlier use of the memory.
class ActivationStore {
 public:
  // `host`: a slab with as many bytes free as the memory plan predicts; null if nothing is offloaded.
  ActivationStore(
      std::vector<models::ActivationPolicy> policies, at::Device device, std::shared_ptr<device::HostSlab> host);

  models::ActivationPolicy policy(int64_t block) const {
    return policies_[block];
  }

  // Call this after each block's forward pass, in forward order.
  void put(int64_t block, models::BlockSaved saved);
  // Call this after the last block: no offloaded tensor is on the device any more.
  void finish_forward();
  // Starts copying an offloaded block back to the device; does nothing for other blocks.
  void prefetch(int64_t block);
  // Call this before a block's backward pass: returns its tensors, which the store then forgets.
  models::BlockSaved take(int64_t block);

 private:
  // A tensor that was offloaded to host memory.
  struct Away {
    at::Tensor bytes; // uint8, a piece of the slab
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes, strides;
  };
  struct Stored {
    models::BlockSaved saved; // on the device; empty while the block is offloaded
    std::vector<Away> away; // one for each tensor of BlockSaved::all()
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
  std::optional<models::BlockSaved> leaving_; // its copy to the host may still be running
};

} // namespace distill::sharding
