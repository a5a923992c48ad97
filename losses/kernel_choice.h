#pragma once

#include <cstddef>
#include <limits>
#include <vector>

// Which of several kernels that compute the same runs next, and which turned out fastest.
namespace distill::losses {

// The first calls run every candidate in turn, kRounds times, and are timed; every call after that runs the fastest.
// Candidates must give the same bits: which one runs depends on the clock.
class KernelChoice {
 public:
  static constexpr size_t kRounds = 3; // the least of three: a first launch loads the kernel

  struct Turn {
    size_t candidate;
    bool timed; // its time is wanted by record()
  };

  explicit KernelChoice(size_t candidates) : least_ms_(candidates, std::numeric_limits<float>::infinity()) {}

  // What the next call is to run.
  Turn next() {
    if (least_ms_.size() > 1 && handed_out_ < kRounds * least_ms_.size()) {
      return {handed_out_++ % least_ms_.size(), true};
    }
    return {fastest_, false};
  }

  // Times may come late and in any order; until all have come, the fastest known runs.
  void record(size_t candidate, float ms) {
    least_ms_[candidate] = ms < least_ms_[candidate] ? ms : least_ms_[candidate];
    fastest_ = least_ms_[candidate] < least_ms_[fastest_] ? candidate : fastest_;
  }

  size_t fastest() const {
    return fastest_;
  }

 private:
  std::vector<float> least_ms_; // of each candidate
  size_t handed_out_ = 0;
  size_t fastest_ = 0; // at first cuBLAS's own choice
};

} // namespace distill::losses
