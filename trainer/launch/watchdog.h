#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "trainer/launch/stop_signal.h"

namespace distill::launch {

struct WatchdogOptions {
  std::string who; // "rank 3", for messages
  std::chrono::milliseconds step_timeout{0}; // without coming to a new place; 0: no limit
  std::chrono::milliseconds grace{0}; // from the signal to the end of the process; 0: no limit
  std::string stacks_file; // where the threads' stacks go
  // Called before the process is ended, for what else should be written down. Given a few seconds.
  std::function<void()> write_more;
};

// Ends a process that has stopped making progress, or does not stop in time after a signal: with an error that names
// the place where it is and the stacks of all threads in a file. The exit code is 1, what was saved stays.
class Watchdog {
 public:
  // `stop` outlives this.
  Watchdog(WatchdogOptions options, const StopSignal& stop);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Progress. `place` lives as long as the program. Costs a few stores.
  void at(int64_t step, const char* place);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace distill::launch
