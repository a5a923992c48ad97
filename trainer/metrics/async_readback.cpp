#include "trainer/metrics/async_readback.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

#include "trainer/device/simulation.h"
#include "trainer/device/small_copy.h"

namespace distill::metrics {

namespace {

// Polls the event, since its own wait would never return when the device hangs.
void wait_for(const c10::Event& event, std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!event.query()) {
    if (std::chrono::steady_clock::now() > end) {
      throw DeviceTimeout(absl::StrFormat("the device did not finish a step within %d s", timeout.count() / 1000));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

} // namespace

AsyncReadback::AsyncReadback(c10::Device device, int64_t count, int64_t lag, std::chrono::milliseconds timeout)
    : device_(device), count_(count), lag_(lag), timeout_(timeout) {}

void AsyncReadback::push(const at::Tensor& numbers) {
  TORCH_CHECK(
      numbers.scalar_type() == at::kDouble && numbers.numel() == count_, "AsyncReadback: expected ", count_,
      " fp64 numbers, found ", numbers.sizes(), " of ", numbers.scalar_type());
  if (free_.empty()) {
    Slot fresh;
    fresh.host = at::empty({count_}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device_.is_cuda()));
    if (device::has_streams(device_)) {
      fresh.copied = std::make_unique<c10::Event>(device_.type());
    }
    free_.push_back(std::move(fresh));
  }
  Slot slot = std::move(free_.front());
  free_.pop_front();
  device::copy_small(slot.host, numbers);
  if (slot.copied) {
    slot.copied->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  pending_.push_back(std::move(slot));
}

std::optional<std::vector<double>> AsyncReadback::pop(bool all) {
  const auto outstanding = static_cast<int64_t>(pending_.size());
  if (outstanding == 0 || (!all && outstanding <= lag_)) {
    return std::nullopt;
  }
  Slot slot = std::move(pending_.front());
  pending_.pop_front();
  if (slot.copied) {
    wait_for(*slot.copied, timeout_);
  }
  const auto* data = slot.host.const_data_ptr<double>();
  std::vector<double> numbers(data, data + count_);
  free_.push_back(std::move(slot));
  return numbers;
}

} // namespace distill::metrics
