#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <memory>
#include <vector>

namespace distill::metrics {

// The parts of a training step, in the order of a micro-batch.
enum class Phase {
  kTeacher,
  kForward,
  kHead,
  kBackward,
  kOptimizer,
  kCount
};
const char* phase_name(Phase phase);

using PhaseSeconds = std::array<double, static_cast<size_t>(Phase::kCount)>;

// How long each phase of a step took on the device: events on the compute stream, which cost no synchronisation; on the
// CPU the clock. What the compute stream waits for (a gather that comes late) counts to the phase that waits.
class PhaseTimer {
 public:
  explicit PhaseTimer(c10::Device device) : device_(device) {}

  // The phase from here on; ends the one before.
  void begin(Phase phase);
  // Ends the last phase and returns the sums since the last call. The device must have finished the step.
  PhaseSeconds finish();

 private:
  struct Mark {
    Phase phase;
    std::chrono::steady_clock::time_point time;
    size_t event; // index into events_
  };
  void mark(Phase phase);

  c10::Device device_;
  std::vector<Mark> marks_;
  std::vector<std::unique_ptr<c10::Event>> events_; // reused step after step
};

} // namespace distill::metrics
