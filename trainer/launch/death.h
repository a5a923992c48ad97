#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace distill::launch {

// Processes of this machine that the kernel's out-of-memory killer has ended since it was started; nullopt: the kernel
// does not say.
std::optional<int64_t> out_of_memory_kills();

// The end by a signal of a process that distill has started.
struct Death {
  std::string process; // "rank 1"
  int signal = 0;
  bool dumped_core = false;
  std::string place; // what it was doing, "in step 12, phase backward"; empty: not known
  std::optional<int64_t> out_of_memory_kills; // on this machine while the process ran; nullopt: not known
};

// The number of such kills since out_of_memory_kills() returned `before`.
std::optional<int64_t> out_of_memory_kills_since(const std::optional<int64_t>& before);

// What is printed when a process was killed by a signal that distill has not sent: the process, the signal, what it was
// doing, and how to find out who has sent it.
std::string killed_text(const Death& death);

// What is printed when distill itself has ended a process, since another one, "rank 0", had failed.
std::string ended_text(const Death& death, const std::string& failed);

} // namespace distill::launch
