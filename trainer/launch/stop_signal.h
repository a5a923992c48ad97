#pragma once

namespace distill::launch {

// Turns SIGINT, SIGTERM and SIGUSR1 into a request to stop after the current step. A second SIGINT ends the process at
// once. Unblocks them: distill starts its ranks with these signals blocked, so that one that comes early waits for
// this. Restores the former handlers when destroyed. One at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The signal's number, 0 while none has arrived.
  int received() const;
};

} // namespace distill::launch
