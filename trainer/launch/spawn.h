#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "trainer/launch/stop_signal.h"

namespace distill::launch {

struct SpawnOptions {
  int64_t processes = 1;
  std::chrono::milliseconds grace{5000}; // from SIGTERM to SIGKILL for the other ranks when one has failed
  std::string consequence = kRunStops; // of the first stop signal, which is printed; see first_signal_notice
  std::string log_file; // named when a rank has failed, if it exists; empty: there is none
};

// Starts this program with its own arguments once for each rank, with torchrun's variables in the environment, and
// waits for all ranks to end. stop_signals() are forwarded to the ranks, and this process alone prints their
// consequence; a second SIGINT kills the ranks and ends this process by SIGINT's default. Lines of a rank's standard
// error that do not name the rank get it as a prefix, except for rank 0. When a rank fails, the other ranks are ended
// and the last lines of the first failed rank are printed again at the end. Where a signal has ended a rank, a line
// names the rank, the signal and what the rank was doing, and whether distill has sent it; if not, how to find out who
// has. The ranks are killed when this process dies. NCCL and Gloo listen on loopback only, unless NCCL_SOCKET_IFNAME or
// GLOO_SOCKET_IFNAME name another interface. Returns the exit code of the first rank that failed, otherwise the largest
// exit code.
absl::StatusOr<int> spawn_ranks(const SpawnOptions& options);

} // namespace distill::launch
