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

// A copy of a rank's state in host memory (page-locked if the state is on a GPU), so that training continues while the
// copy is made and written. The training thread calls take() and before_update(); another thread calls copy().
class Snapshot {
 public:
  // `memory`: a byte tensor on the host, of the size of all tensors. `device`: of the tensors that are not on the host.
  Snapshot(at::Tensor memory, at::Device device);

  // Sets the contiguous tensors that copy() will copy, with the values that they have after all work queued so far.
  // They must not change until before_update() has returned.
  void take(std::vector<NamedTensor> tensors);

  // Copies the tensors one after the other. Must be called once after each take(), since before_update() waits until it
  // has returned or thrown.
  void copy();

  // Blocks the host until copy() has ended.
  void before_update();

  // How long training stood still for the copy: the time between the last work that was queued before before_update()
  // and the first work after it. To be called when the step after take() has ended.
  double stall_seconds();

  // Calls `piece` with the copied bytes, in order and in pieces. Returns the first error.
  absl::Status read(const std::function<absl::Status(const at::Tensor& bytes)>& piece) const;

 private:
  void copy_from_device(const at::Tensor& bytes, int64_t position);
  void wait_for_copy();

  at::Device device_;
  at::Tensor memory_;
  std::vector<NamedTensor> tensors_;
  std::optional<c10::Stream> stream_; // for a GPU, as are the events
  std::optional<c10::Event> ready_, arrived_, wait_begin_, wait_end_;

  std::mutex mutex_;
  std::condition_variable ended_;
  bool copying_ = false; // from take() to the end of copy(); guarded by mutex_
  bool waited_ = true; // before_update() has been called since take()
  bool timed_ = false;
  double host_stall_seconds_ = 0; // without a GPU
};

} // namespace distill::checkpoint
