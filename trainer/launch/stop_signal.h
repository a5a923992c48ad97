#pragma once

namespace distill::launch {

// Turns SIGINT, SIGTERM and SIGUSR1 into a request to stop after the current step. A second SIGINT ends the process at
// once. The constructor unblocks the three signals: distill starts its ranks with them blocked, so that an early signal
// waits until it is handled here. The destructor restores the former handlers. At most one object at a time may exist
// in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal's number; 0: none has arrived.
  int received() const;
};

} // namespace distill::launch
