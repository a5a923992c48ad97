#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>

namespace distill::launch {

struct SpawnOptions {
  int64_t processes = 1;
  std::chrono::milliseconds grace{5000}; // between asking ranks to end and killing them
};

// Starts this program, with the arguments it was started with, once for each rank, and waits for all of them. The ranks
// find torchrun's variables in their environment.
// Forwards SIGINT, SIGTERM and SIGUSR1. Lines of standard error that do not say of which rank other than 0 they are get
// it as a prefix. When one fails, the others are ended and what the first failing rank said last is printed last. A
// rank ends with its parent. Returns the exit code: the first failing rank's, otherwise the largest of all.
absl::StatusOr<int> spawn_ranks(const SpawnOptions& options);

} // namespace distill::launch
