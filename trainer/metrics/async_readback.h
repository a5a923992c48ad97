#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

namespace distill::metrics {

// The device did not finish a step within the timeout.
class DeviceTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Copies a few numbers of each step from the device to the host without stalling the steps: a non-blocking copy into
// pinned memory is queued on the compute stream, and its result is read when `lag` further steps have been queued. On
// the CPU the numbers are there at once.
class AsyncReadback {
 public:
  // `count` fp64 numbers for each step. The lag is a fixed number of steps, and does not depend on when the copies
  // complete, so that all ranks read a step at the same point of the program.
  AsyncReadback(c10::Device device, int64_t count, int64_t lag, std::chrono::milliseconds timeout);

  // numbers: fp64 [count] on the device; later work on the stream may overwrite them.
  void push(const at::Tensor& numbers);
  // The numbers of the oldest step that has not been read, if more than `lag` steps are outstanding, or if `all` is set
  // and any step is. Waits for their copy; throws DeviceTimeout when it does not complete in time. nullopt: no step is
  // due.
  std::optional<std::vector<double>> pop(bool all);

 private:
  struct Slot {
    at::Tensor host; // fp64 [count], pinned on CUDA
    std::unique_ptr<c10::Event> copied; // null on the CPU
  };
  c10::Device device_;
  int64_t count_;
  int64_t lag_;
  std::chrono::milliseconds timeout_;
  std::deque<Slot> pending_, free_;
};

} // namespace distill::metrics
