#pragma once

#include <cstdint>
#include <string>

namespace distill::metrics {

// Records a few steps with libtorch's profiler (Kineto) into a Chrome trace, for chrome://tracing and Perfetto.
class TraceRecorder {
 public:
  // Records the steps [first, first + count), counted from 1. The file is written after the last of them.
  TraceRecorder(int64_t first, int64_t count, bool cuda, std::string path);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  void before_step(int64_t step);
  // Call this when the step has been queued. After the last recorded step it waits for the device, writes the file and
  // returns true.
  bool after_step(int64_t step);
  const std::string& path() const {
    return path_;
  }

 private:
  int64_t first_;
  int64_t last_;
  bool cuda_;
  std::string path_;
  bool recording_ = false;
};

} // namespace distill::metrics
