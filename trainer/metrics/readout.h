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

// The device did not get to the end of a step.
class DeviceTimeout : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Brings a few numbers of each step from the device to the host without making the steps wait: they are copied into
// pinned memory on the compute stream, and read when `lag` further steps have been queued. On the CPU they are there at
// once.
class Readout {
 public:
  // `count` fp64 numbers a step. The lag is a number of steps and not a question of whether they have arrived, so that
  // all ranks read the same step at the same place.
  Readout(c10::Device device, int64_t count, int64_t lag, std::chrono::milliseconds timeout);

  // numbers: fp64 [count] on the device; may be overwritten by what is queued afterwards.
  void push(const at::Tensor& numbers);
  // The oldest step's numbers once more than `lag` steps are outstanding, or with `all` any that is; waits for the
  // device until they have arrived, DeviceTimeout when they do not within the timeout. nullopt: no step is due.
  std::optional<std::vector<double>> pop(bool all);

 private:
  struct Pending {
    at::Tensor host; // fp64 [count], pinned on CUDA
    std::unique_ptr<c10::Event> arrived; // null on the CPU
  };
  c10::Device device_;
  int64_t count_;
  int64_t lag_;
  std::chrono::milliseconds timeout_;
  std::deque<Pending> pending_, free_;
};

} // namespace distill::metrics
