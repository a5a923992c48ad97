#include "trainer/metrics/phase_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <numeric>

#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"

namespace distill::metrics {

namespace {

device::MemoryPhase memory_phase(Phase phase) {
  constexpr device::MemoryPhase kPhases[] = {
      device::MemoryPhase::kTeacher, device::MemoryPhase::kForward, device::MemoryPhase::kHead,
      device::MemoryPhase::kBackward, device::MemoryPhase::kOptimizer};
  return kPhases[static_cast<size_t>(phase)];
}

} // namespace

const char* phase_name(Phase phase) {
  constexpr const char* kNames[] = {"teacher", "forward", "head", "backward", "optimizer", "communication", "data"};
  return kNames[static_cast<size_t>(phase)];
}

double total(const PhaseSeconds& phases) {
  return std::accumulate(phases.begin(), phases.end(), 0.0);
}

void PhaseTimer::mark(Phase phase) {
  Mark mark{phase, std::chrono::steady_clock::now(), nullptr};
  if (device::has_streams(device_)) {
    if (events_.empty()) {
      events_.push_back(std::make_unique<c10::Event>(device_.type(), c10::EventFlag::BACKEND_DEFAULT));
    }
    mark.event = std::move(events_.back());
    events_.pop_back();
    mark.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
  marks_.push_back(std::move(mark));
}

void PhaseTimer::recycle(Marks& marks) {
  for (Mark& mark : marks) {
    if (mark.event) {
      events_.push_back(std::move(mark.event));
    }
  }
  marks.clear();
}

void PhaseTimer::begin_step() {
  recycle(marks_);
  mark(Phase::kData);
}

void PhaseTimer::begin(Phase phase) {
  phase_ = phase;
  mark(phase);
  device::enter_phase(memory_phase(phase));
}

void PhaseTimer::waiting(bool waits, Phase what) {
  if (phase_ != Phase::kCount) {
    mark(waits ? what : phase_);
  }
}

void PhaseTimer::end_step() {
  mark(Phase::kCount);
  phase_ = Phase::kCount;
  device::enter_phase(device::MemoryPhase::kBetween);
  ended_.push_back(std::exchange(marks_, {}));
  mark(Phase::kData);
}

PhaseSeconds PhaseTimer::take() {
  PhaseSeconds seconds{};
  if (ended_.empty()) {
    return seconds;
  }
  Marks marks = std::move(ended_.front());
  ended_.pop_front();
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    const Mark& from = marks[i];
    const Mark& to = marks[i + 1];
    seconds[static_cast<size_t>(from.phase)] += !device::has_streams(device_)
        ? std::chrono::duration<double>(to.time - from.time).count()
        : 1e-3 * from.event->elapsedTime(*to.event);
  }
  recycle(marks);
  return seconds;
}

} // namespace distill::metrics
