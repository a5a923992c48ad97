#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

namespace distill::metrics {

// The parts of a training step, in the order of a micro-batch, and what any of them waits for.
enum class Phase {
  kTeacher,
  kForward,
  kHead,
  kBackward,
  kOptimizer,
  kCommunication, // the compute stream waits for a gather or a reduction
  kCount
};
const char* phase_name(Phase phase);

using PhaseSeconds = std::array<double, static_cast<size_t>(Phase::kCount)>;

// How long a step took, of `interval`, the seconds from the end of the one before (or its own start) to its end, both
// as the host reads them, and its phases. Two steps that are read one right after the other, as the last two of a run
// are, leave no time between them, but neither takes less than its phases on the device.
double step_seconds(double interval, const PhaseSeconds& phases);

// How long each phase of a step took on the device: events on the compute stream, which cost no synchronisation; on the
// CPU the clock. Every moment of a step counts to one phase.
class PhaseTimer {
 public:
  explicit PhaseTimer(c10::Device device) : device_(device) {}

  // The phase from here on, of time and of memory (device::enter_phase); ends the one before.
  void begin(Phase phase);
  // Between true and false, communication that is waited for; then the phase before goes on. Ignored between steps.
  void waiting(bool waits);
  // Ends the last phase of a step.
  void end_step();
  // The sums of the oldest step that was ended and not taken yet; zeros where there is none. The device must have
  // finished that step.
  PhaseSeconds take();

 private:
  struct Mark {
    Phase phase;
    std::chrono::steady_clock::time_point time;
    std::unique_ptr<c10::Event> event; // null on the CPU
  };
  using Marks = std::vector<Mark>;
  void mark(Phase phase);

  c10::Device device_;
  Marks marks_; // of the step that is being queued
  std::deque<Marks> ended_;
  Phase phase_ = Phase::kCount; // kCount: between steps
  std::vector<std::unique_ptr<c10::Event>> events_; // for reuse
};

} // namespace distill::metrics
