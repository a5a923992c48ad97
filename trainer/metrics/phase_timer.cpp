#include "trainer/metrics/phase_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace distill::metrics {

const char* phase_name(Phase phase) {
  constexpr const char* kNames[] = {"teacher", "forward", "head", "backward", "optimizer"};
  return kNames[static_cast<size_t>(phase)];
}

void PhaseTimer::mark(Phase phase) {
  const size_t index = marks_.size();
  if (!device_.is_cpu()) {
    if (index == events_.size()) {
      events_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
    }
    events_[index]->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  marks_.push_back({phase, std::chrono::steady_clock::now(), index});
}

void PhaseTimer::begin(Phase phase) {
  mark(phase);
}

PhaseSeconds PhaseTimer::finish() {
  PhaseSeconds seconds{};
  if (marks_.empty()) {
    return seconds;
  }
  mark(Phase::kCount);
  if (!device_.is_cpu()) {
    events_[marks_.back().event]->synchronize();
  }
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    const Mark& from = marks_[i];
    const Mark& to = marks_[i + 1];
    const double duration = device_.is_cpu() ? std::chrono::duration<double>(to.time - from.time).count()
                                             : 1e-3 * events_[from.event]->elapsedTime(*events_[to.event]);
    seconds[static_cast<size_t>(from.phase)] += duration;
  }
  marks_.clear();
  return seconds;
}

} // namespace distill::metrics
