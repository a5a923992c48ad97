#include "trainer/sharding/activation_store.h"

#include "trainer/device/memory_tracker.h"

namespace distill::sharding {
ActivationStore::ActivationStore(
    std::vector<models::ActivationPolicy> policies, at::Device device, std::shared_ptr<device::HostSlab> host)
    : policies_(std::move(policies)),
      host_(std::move(host)),
      device_(device),
      out_(device),
      in_(device),
      computed_(device),
      left_(device),
      allocated_(device) {
  for (size_t i = 0; i < policies_.size(); ++i) {
    blocks_.emplace_back(device);
  }
}

at::Tensor ActivationStore::host_view(const Away& away) const {
  return away.bytes.view(away.dtype).as_strided(away.sizes, away.strides);
}

// Queues the copies to the host. The first micro-batch decides each tensor's place in the slab.
void ActivationStore::send_away(Stored& stored) {
  const std::vector<at::Tensor*> tensors = stored.saved.all();
  stored.away.resize(tensors.size());
  computed_.record();
  out_.run([&] {
    computed_.wait(); // the block's forward pass has written them
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i]->defined()) {
        continue;
      }
      const at::Tensor& tensor = *tensors[i];
      TORCH_CHECK(tensor.is_non_overlapping_and_dense(), "a saved tensor has gaps: strides ", tensor.strides());
      Away& away = stored.away[i];
      const auto bytes = static_cast<int64_t>(tensor.nbytes());
      if (!away.bytes.defined() || away.bytes.numel() != bytes) {
        away.bytes = device::HostSlab::take(host_, bytes);
      }
      away.dtype = tensor.scalar_type();
      away.sizes = tensor.sizes().vec();
      away.strides = tensor.strides().vec();
      host_view(away).copy_(tensor, /*non_blocking=*/true);
    }
    left_.record();
  });
}

void ActivationStore::finish_forward() {
  if (leaving_) {
    left_.wait();
    leaving_.reset();
  }
}

void ActivationStore::put(int64_t block, models::BlockSaved saved) {
  Stored& stored = blocks_[block];
  stored.saved = std::move(saved);
  for (const at::Tensor* tensor : stored.saved.tensors()) {
    device::label(*tensor, device::Category::kActivations);
  }
  stored.is_away = models::is_offloaded(policies_[block]);
  if (stored.is_away) {
    finish_forward(); // waits for the copy of the previous offloaded block
    send_away(stored);
    leaving_ = std::move(stored.saved);
    stored.saved = {};
  }
}

void ActivationStore::prefetch(int64_t block) {
  Stored& stored = blocks_[block];
  if (!stored.is_away || stored.is_returning) {
    return;
  }
  const std::vector<at::Tensor*> tensors = stored.saved.all();
  const device::LabelScope label(device::Category::kActivations);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Away& away = stored.away[i];
    if (!away.sizes.empty()) {
      *tensors[i] = at::empty_strided(away.sizes, away.strides, at::TensorOptions().dtype(away.dtype).device(device_));
    }
  }
  allocated_.record();
  in_.run([&] {
    allocated_.wait(); // kernels that used this memory before are done
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i]->defined()) {
        tensors[i]->copy_(host_view(stored.away[i]), /*non_blocking=*/true);
      }
    }
    stored.arrived.record();
  });
  stored.is_returning = true;
}

models::BlockSaved ActivationStore::take(int64_t block) {
  prefetch(block);
  Stored& stored = blocks_[block];
  if (stored.is_returning) {
    stored.arrived.wait();
  }
  stored.is_away = stored.is_returning = false;
  return std::exchange(stored.saved, {});
}

} // namespace distill::sharding
