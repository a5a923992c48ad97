#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <deque>
#include <memory>
#include <vector>

namespace distill::metrics {

// The parts of a training step in the order of a micro-batch, then the compute stream's waits.
enum class Phase {
  kTeacher,
  kForward,
  kHead,
  kBackward,
  kOptimizer, // including waits of the forward pass for an overlapped update
  kCommunication, // waiting for an all-gather or a reduction
  kData, // waiting for the next batch, from the end of the previous step on
  kCount
};
const char* phase_name(Phase phase);

using PhaseSeconds = std::array<double, static_cast<size_t>(Phase::kCount)>;

// The duration of a step: the sum of its phases.
double total(const PhaseSeconds& phases);

// Measures the time of each phase of a step on the device, with events on the compute stream, which need no
// synchronisation; on the CPU with the clock. All time from the end of one step to the end of the next is attributed to
// exactly one phase, no matter when the host queues work or reads results, unless begin_step() excludes the time
// between two steps.
class PhaseTimer {
 public:
  explicit PhaseTimer(c10::Device device) : device_(device) {}

  // The next step begins here, and not at the end of the previous one.
  void begin_step();
  // Ends the current phase and begins another one, for times and for memory (device::enter_phase).
  void begin(Phase phase);
  // waiting(true) begins, and waiting(false) ends, a time in which the stream waits for `what`; the interrupted phase
  // then continues. Ignored between steps.
  void waiting(bool waits, Phase what = Phase::kCommunication);
  // Ends the last phase of a step.
  void end_step();
  // The times of the oldest ended step that has not been taken; zeros: there is none. The device must have finished
  // that step.
  PhaseSeconds take();

 private:
  struct Mark {
    Phase phase;
    std::chrono::steady_clock::time_point time;
    std::unique_ptr<c10::Event> event; // null on the CPU
  };
  using Marks = std::vector<Mark>;
  void mark(Phase phase);
  void recycle(Marks& marks);

  c10::Device device_;
  Marks marks_; // of the current step
  std::deque<Marks> ended_;
  Phase phase_ = Phase::kCount; // kCount: between steps
  std::vector<std::unique_ptr<c10::Event>> events_; // to be used again
};

} // namespace distill::metrics
