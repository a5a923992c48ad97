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
  int64_t pid_namespace = 0; // in which `pid` counts; 0: unknown

  static LockHolder this_process();
  std::string json() const;
  // The text is not trusted. nullopt: it is not what json() writes.
  static std::optional<LockHolder> parse(const std::string& text);
  // "process 4711 on host node7 since 2026-11-22 14:30:11 UTC (distill --config a.yaml)"
  std::string text() const;

  bool is_on_this_host() const;
  // Whether the process has been killed and its memory is being released, which takes seconds where it had much. False
  // if it cannot be seen from here.
  bool is_ending() const;
};

} // namespace distill::trainer
