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
  kOptimizer, // and what the forward pass waits for of an update beside it
  kCommunication, // the compute stream waits for a gather or a reduction
  kData, // from the end of the step before: the device waits for the next batch
  kCount
};
const char* phase_name(Phase phase);

using PhaseSeconds = std::array<double, static_cast<size_t>(Phase::kCount)>;

// How long a step took: all of its phases.
double total(const PhaseSeconds& phases);

// How long each phase of a step took on the device: events on the compute stream, which cost no synchronisation; on the
// CPU the clock. Every moment from the end of one step to the end of the next counts to one phase, whenever the host
// comes to queue or to read them, except where begin_step() says that something else was done between the two.
class PhaseTimer {
 public:
  explicit PhaseTimer(c10::Device device) : device_(device) {}

  // The next step begins here, and not where the last one ended.
  void begin_step();
  // The phase from here on, of time and of memory (device::enter_phase); ends the one before.
  void begin(Phase phase);
  // Between true and false, work of `what` that is waited for; then the phase before goes on. Ignored between steps.
  void waiting(bool waits, Phase what = Phase::kCommunication);
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
  void recycle(Marks& marks);

  c10::Device device_;
  Marks marks_; // of the step that is being queued
  std::deque<Marks> ended_;
  Phase phase_ = Phase::kCount; // kCount: between steps
  std::vector<std::unique_ptr<c10::Event>> events_; // for reuse
};

} // namespace distill::metrics
