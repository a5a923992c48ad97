#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace distill::launch {

// The place of each rank of this host in the run: its step and phase. The ranks write it into memory that they share
// with the process that has started them, which can then say what a rank was doing when it was killed.
class RankPlaces {
 public:
  static absl::StatusOr<std::unique_ptr<RankPlaces>> create(int64_t ranks);
  ~RankPlaces();
  RankPlaces(const RankPlaces&) = delete;
  RankPlaces& operator=(const RankPlaces&) = delete;

  // Called in the process that becomes this rank, between fork and exec: hands the memory down.
  void hand_to(int64_t rank) const;
  // "in step 12, phase backward", or "while loading weights" before the first step.
  std::string place(int64_t rank) const;

 private:
  RankPlaces(int fd, void* memory, int64_t ranks) : fd_(fd), memory_(memory), ranks_(ranks) {}

  int fd_; // of an anonymous file
  void* memory_;
  int64_t ranks_;
};

// Writes the place of this rank, for the process that has started it; does nothing if that was not distill. Only one
// thread may call it at a time.
void report_place(int64_t step, const char* phase);

} // namespace distill::launch
