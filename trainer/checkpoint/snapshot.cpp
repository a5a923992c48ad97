#include "trainer/checkpoint/snapshot.h"

#include <absl/cleanup/cleanup.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "data/base/status_macros.h"
#include "trainer/device/host_slab.h"

namespace distill::checkpoint {
namespace {

// Bytes that are copied at a time: 2.5 ms of the copy engine. Smaller pieces lose more time between the copies
// (docs/reliability.md).
constexpr int64_t kPieceBytes = int64_t{128} << 20;

} // namespace

Snapshot::Snapshot(at::Tensor memory, at::Device device) : device_(device), memory_(std::move(memory)) {
  if (!device.is_cpu()) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    ready_.emplace(device.type());
    arrived_.emplace(device.type());
    wait_begin_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    wait_end_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  }
}

void Snapshot::take(std::vector<NamedTensor> tensors) {
  int64_t bytes = 0;
  bool any_on_host = false;
  for (const NamedTensor& named : tensors) {
    TORCH_CHECK(named.tensor.is_contiguous(), named.name, ": a contiguous tensor is expected");
    bytes += static_cast<int64_t>(named.tensor.nbytes());
    // The states of generators are byte tensors, and already copies.
    any_on_host = any_on_host || (named.tensor.is_cpu() && named.tensor.is_floating_point());
  }
  TORCH_CHECK(bytes == memory_.numel(), bytes, " bytes to copy where ", memory_.numel(), " were announced");
  tensors_ = std::move(tensors);
  if (stream_) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    ready_->record(guard.getStream(device_));
    if (any_on_host) { // other streams write to the host tensors
      guard.synchronizeDevice(device_.index());
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  copying_ = true;
  waited_ = timed_ = false;
}

// Queues one copy at a time. The copy engine works in the order of its queue, and a compute stream whose last work was
// a copy to the host (the step's numbers) has its next event in that queue, too: with all copies queued at once, the
// next step would start only after them.
void Snapshot::copy_from_device(const at::Tensor& bytes, int64_t position) {
  for (int64_t begin = 0; begin < bytes.numel(); begin += kPieceBytes) {
    const int64_t count = std::min(kPieceBytes, bytes.numel() - begin);
    memory_.narrow(0, position + begin, count).copy_(bytes.narrow(0, begin, count), /*non_blocking=*/true);
    arrived_->record(*stream_);
    arrived_
        ->synchronize(); // a wait on the stream would be reported by parallel.debug_checks as one of the training step
  }
}

void Snapshot::copy() {
  const absl::Cleanup end = [this] {
    tensors_.clear();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      copying_ = false;
    }
    ended_.notify_all();
  };
  std::optional<c10::StreamGuard> guard;
  if (stream_) {
    guard.emplace(*stream_);
    ready_->block(*stream_);
  }
  int64_t position = 0;
  for (const NamedTensor& named : tensors_) {
    const at::Tensor bytes = named.tensor.view({-1}).view(at::kByte);
    if (bytes.is_cpu()) {
      device::copy_on_host(memory_.mutable_data_ptr<uint8_t>() + position, bytes.const_data_ptr(), bytes.numel());
    } else {
      copy_from_device(bytes, position);
    }
    position += bytes.numel();
  }
}

void Snapshot::wait_for_copy() {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return !copying_; });
}

void Snapshot::before_update() {
  if (waited_) {
    return;
  }
  waited_ = timed_ = true;
  if (!stream_) {
    const auto began = std::chrono::steady_clock::now();
    wait_for_copy();
    host_stall_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return;
  }
  // The work of the step so far is queued: the device executes it while the host waits.
  const c10::Stream compute = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  wait_begin_->record(compute);
  wait_for_copy();
  wait_end_->record(compute);
}

double Snapshot::stall_seconds() {
  if (!timed_) {
    return 0;
  }
  timed_ = false;
  if (!stream_) {
    return host_stall_seconds_;
  }
  wait_end_->synchronize();
  return 1e-3 * wait_begin_->elapsedTime(*wait_end_);
}

absl::Status Snapshot::read(const std::function<absl::Status(const at::Tensor&)>& piece) const {
  for (int64_t begin = 0; begin < memory_.numel(); begin += kPieceBytes) {
    const int64_t count = std::min(kPieceBytes, memory_.numel() - begin);
    RETURN_IF_ERROR(piece(memory_.narrow(0, begin, count)));
  }
  return absl::OkStatus();
}

} // namespace distill::checkpoint
