#pragma once

#include <cstdint>
#include <string>

namespace distill::metrics {

// Records a few steps with libtorch's profiler (Kineto) into a Chrome trace, which chrome://tracing and Perfetto open.
class TraceRecorder {
 public:
  // Steps [first, first + count), 1-based; count 0: none. The file is written when the last of them has ended.
  TraceRecorder(int64_t first, int64_t count, bool cuda, std::string path);
  ~TraceRecorder();
  TraceRecorder(const TraceRecorder&) = delete;
  TraceRecorder& operator=(const TraceRecorder&) = delete;

  void before_step(int64_t step);
  // True when this step, which has been queued, was the last and the file has been written. Waits for the device then.
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
