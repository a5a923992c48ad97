#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace distill::trainer {

// Who holds the lock of a run folder: the content of its lock file, one JSON object.
struct LockHolder {
  std::string host;
  int64_t pid = 0;
  std::string since; // UTC
  std::string command; // shortened where it is long
  std::string boot; // id of the kernel's boot, the same in all containers of a machine; empty: unknown
  int64_t pid_namespace = 0; // in which `pid` counts; 0: unknown
  int64_t process_start = 0; // in clock ticks since boot: tells the process from a later one with the same id

  static LockHolder this_process();
  std::string json() const;
  // The text is not trusted. nullopt: it is not what json() writes.
  static std::optional<LockHolder> parse(const std::string& text);
  // "process 4711 on host node7 since 2026-11-22 14:30:11 UTC (distill --config a.yaml)"
  std::string text() const;

  // Whether this process and the holder's were started under the same kernel, whose locks therefore speak for both.
  bool same_kernel() const;
};

enum class ProcessState {
  kRunning,
  kEnding, // killed; its memory and files are being released, which takes seconds where it had much memory
  kGone,
  kUnknown, // it cannot be seen from here
};
ProcessState process_state(const LockHolder& holder);

} // namespace distill::trainer
