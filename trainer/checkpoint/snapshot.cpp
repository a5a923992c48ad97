#include "trainer/checkpoint/snapshot.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace distill::checkpoint {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20; // handed out at a time

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

} // namespace

Snapshot::Snapshot(at::Tensor memory, at::Device device) : device_(device), memory_(std::move(memory)) {
  if (!device.is_cpu()) {
    stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
    ready_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    resumed_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    copied_.emplace(device.type());
    wait_begin_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    wait_end_.emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  }
}

void Snapshot::take(const std::vector<NamedTensor>& tensors) {
  const auto copy = [&] {
    int64_t position = 0;
    for (const NamedTensor& named : tensors) {
      TORCH_CHECK(named.tensor.is_contiguous(), named.name, ": a contiguous tensor is expected");
      const at::Tensor bytes = named.tensor.view({-1}).view(at::kByte);
      memory_.narrow(0, position, bytes.numel()).copy_(bytes, /*non_blocking=*/true);
      position += bytes.numel();
    }
    TORCH_CHECK(position == memory_.numel(), position, " bytes copied where ", memory_.numel(), " were announced");
  };
  if (!stream_) {
    copy();
    return;
  }
  // State that lies in host memory is copied by the host itself: everything that writes to it must be over.
  // (Generators' states are bytes, and copies already.)
  const bool any_on_host = std::any_of(tensors.begin(), tensors.end(), [](const NamedTensor& named) {
    return named.tensor.is_cpu() && named.tensor.is_floating_point();
  });
  if (any_on_host) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  const c10::Stream compute = current_stream(device_);
  ready_->record(compute); // the update that these tensors hold
  {
    const c10::StreamGuard guard(*stream_);
    ready_->block(*stream_);
    copy();
    copied_->record(*stream_);
  }
  resumed_->record(compute); // late where the copies keep the compute stream's work from starting
  waited_ = false;
  timed_ = false;
}

void Snapshot::before_update() {
  if (waited_) {
    return;
  }
  const c10::Stream compute = current_stream(device_);
  wait_begin_->record(compute);
  copied_->block(compute);
  wait_end_->record(compute);
  waited_ = true;
  timed_ = true;
}

double Snapshot::stall_seconds() {
  if (!timed_) {
    return 0;
  }
  timed_ = false;
  wait_end_->synchronize();
  return 1e-3 * (ready_->elapsedTime(*resumed_) + wait_begin_->elapsedTime(*wait_end_));
}

absl::Status Snapshot::read(const std::function<absl::Status(const at::Tensor&)>& piece) {
  if (copied_) {
    c10::impl::VirtualGuardImpl(device_.type()).setDevice(device_); // a thread of its own begins with the first GPU
    copied_->synchronize();
  }
  for (int64_t begin = 0; begin < memory_.numel(); begin += kPieceBytes) {
    const int64_t count = std::min(kPieceBytes, memory_.numel() - begin);
    if (absl::Status status = piece(memory_.narrow(0, begin, count)); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

} // namespace distill::checkpoint
