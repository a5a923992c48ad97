#pragma once

#include <cstdint>
#include <string>

namespace distill::device {

// Memory of one rank's device, in bytes, that neither the allocator nor peer memory takes.
struct OutsideMemory {
  int64_t context = 0; // the driver, kernels' code, libraries' handles
  int64_t communicators = 0;
  int64_t others = 0; // of other processes; not in total(), since the run does not take it
  bool measured = false; // false: assumed

  int64_t total() const {
    return context + communicators;
  }
  // "2.45 GiB outside the allocator (measured: driver and libraries 780 MiB, communicators 1.69 GiB)"
  std::string text() const;
};

// What a run takes beyond what is measured before its first step: the code of kernels that nothing has run yet.
inline constexpr int64_t kLoadedLater = int64_t{128} << 20;

} // namespace distill::device
