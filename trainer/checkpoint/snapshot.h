#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "trainer/checkpoint/run_state.h"

namespace distill::checkpoint {

// A copy of a rank's state in host memory (page-locked where the state lies on a GPU), so that training goes on while
// the copy is made and written. One thread trains and calls take() and before_update(); another one calls copy().
class Snapshot {
 public:
  // `memory`: bytes on the host, as many as the tensors have. `device`: where those lie, host memory aside.
  Snapshot(at::Tensor memory, at::Device device);

  // What copy() is to copy: contiguous tensors of `bytes` in all, as the work that is queued by now leaves them. They
  // must not change until before_update() has returned.
  void take(std::vector<NamedTensor> tensors);

  // Copies the tensors, one after the other. Called once after each take(): before_update() waits for its end, which
  // an error is too.
  void copy();

  // The host waits until copy() has ended.
  void before_update();

  // How long training stood still for the copy, once the step that followed take() has ended: between the last work
  // that was queued before before_update() and the first after it.
  double stall_seconds();

  // Hands out the copied bytes in order, piece by piece. Ends at the first error.
  absl::Status read(const std::function<absl::Status(const at::Tensor& bytes)>& piece) const;

 private:
  void copy_from_device(const at::Tensor& bytes, int64_t position);
  void wait_for_copy();

  at::Device device_;
  at::Tensor memory_;
  std::vector<NamedTensor> tensors_;
  std::optional<c10::Stream> stream_; // the rest is of a GPU
  std::optional<c10::Event> ready_, arrived_, wait_begin_, wait_end_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool copying_ = false; // from take() to copy()'s end; under mutex_
  bool waited_ = true; // before_update() was called since take()
  bool timed_ = false;
  double host_stall_seconds_ = 0; // where there is no GPU
};

} // namespace distill::checkpoint
