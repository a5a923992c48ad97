#include "trainer/metrics/readout.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace distill::metrics {

Readout::Readout(c10::Device device, int64_t count, int64_t lag) : device_(device), count_(count), lag_(lag) {}

void Readout::push(const at::Tensor& numbers) {
  TORCH_CHECK(
      numbers.scalar_type() == at::kDouble && numbers.numel() == count_, "readout: expected ", count_,
      " fp64 numbers, found ", numbers.sizes(), " of ", numbers.scalar_type());
  if (free_.empty()) {
    Pending fresh;
    fresh.host = at::empty({count_}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device_.is_cuda()));
    if (!device_.is_cpu()) {
      fresh.arrived = std::make_unique<c10::Event>(device_.type());
    }
    free_.push_back(std::move(fresh));
  }
  Pending slot = std::move(free_.front());
  free_.pop_front();
  slot.host.copy_(numbers, /*non_blocking=*/true);
  if (slot.arrived) {
    slot.arrived->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  pending_.push_back(std::move(slot));
}

std::optional<std::vector<double>> Readout::pop(bool all) {
  const auto outstanding = static_cast<int64_t>(pending_.size());
  if (outstanding == 0 || (!all && outstanding <= lag_)) {
    return std::nullopt;
  }
  Pending slot = std::move(pending_.front());
  pending_.pop_front();
  if (slot.arrived) {
    slot.arrived->synchronize();
  }
  const auto* data = slot.host.const_data_ptr<double>();
  std::vector<double> numbers(data, data + count_);
  free_.push_back(std::move(slot));
  return numbers;
}

} // namespace distill::metrics
