#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trainer/launch/stop_signal.h"

namespace distill::launch {

struct WatchdogOptions {
  std::string process; // "rank 3", for messages
  std::chrono::milliseconds step_timeout{0}; // longest time between two reports of progress; 0: no limit
  std::chrono::milliseconds grace{0}; // longest time from a signal to the end of the process; 0: no limit
  std::string stacks_file; // receives the stacks of all threads; empty: they are not written
  // Writes further diagnostics before the process ends. It is given a few seconds.
  std::function<void()> write_more;
};

// A thread that ends the process when it makes no progress for too long, or does not stop in time after a signal. It
// logs the phase that the process is in, writes the stacks of all threads to a file and exits with kRuntimeFailure.
// Checkpoints are not touched.
class Watchdog {
 public:
  // `stop` must outlive the watchdog.
  Watchdog(WatchdogOptions options, const StopSignal& stop);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Restarts the timeout, and tells the process that has started this rank (report_place). `phase` must be a string
  // literal. Costs a few stores to memory. One thread at a time.
  void report_progress(int64_t step, const char* phase);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace distill::launch
