#pragma once

#include <string>
#include <vector>

namespace distill::launch {

// SIGINT, SIGTERM, SIGUSR1 and SIGHUP: each asks a run to stop after its step. Without SIGHUP where it is ignored when
// this is called, as nohup does.
std::vector<int> stop_signals();

// What is printed when the first stop signal arrives. `consequence`: what it leads to, "finishing the step, saving".
std::string first_signal_notice(int number, const std::string& consequence);
// What is printed when a second SIGINT arrives.
extern const char kSecondInterruptNotice[];
// Writes to standard error at once; async-signal-safe.
void write_notice(const char* text);

// Turns the stop signals into a request to stop after the current step. A second SIGINT ends the process at once, by
// SIGINT's default. The constructor unblocks the signals: distill starts its ranks with them blocked, so that an early
// signal waits until it is handled here. The destructor restores the earlier handlers. At most one object at a time may
// exist in a process.
class StopSignal {
 public:
  // `consequence`: see first_signal_notice; the handler prints the notice. Empty: it prints nothing, since another
  // process prints it.
  explicit StopSignal(const std::string& consequence = "");
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal's number; 0: none has arrived.
  int received() const;

 private:
  struct EarlierHandler;
  std::vector<EarlierHandler> earlier_handlers_;
};

// The consequence of a signal to a training run.
constexpr const char* kRunStops = "finishing the step and saving, then exit code 3";

} // namespace distill::launch
