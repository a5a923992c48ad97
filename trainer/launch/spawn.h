#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>

namespace distill::launch {

struct SpawnOptions {
  int64_t processes = 1;
  std::chrono::milliseconds grace{5000}; // from SIGTERM to SIGKILL for the other ranks when one has failed
};

// Starts this program with its own arguments once for each rank, with torchrun's variables in the environment, and
// waits for all ranks to end. SIGINT, SIGTERM and SIGUSR1 are forwarded to the ranks. Lines of a rank's standard error
// that do not name the rank get it as a prefix, except for rank 0. When a rank fails, the other ranks are ended and the
// last lines of the first failed rank are printed again at the end. The ranks are killed when this process dies.
// Returns the exit code of the first rank that failed, otherwise the largest exit code.
absl::StatusOr<int> spawn_ranks(const SpawnOptions& options);

} // namespace distill::launch
