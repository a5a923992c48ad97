#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <vector>

#include "trainer/checkpoint/run_state.h"

namespace distill::checkpoint {

// A copy of a rank's state in host memory (page-locked where the state lies on a GPU), so that training goes on while
// the copy is written.
class Snapshot {
 public:
  // `memory`: bytes on the host, as many as the tensors have. `device`: where those lie.
  Snapshot(at::Tensor memory, at::Device device);

  // Copies contiguous tensors of `bytes` in all, one after the other. On a GPU the copies are queued on a stream of
  // their own: the tensors must not change until before_update() has been called.
  void take(const std::vector<NamedTensor>& tensors);

  // What is queued on the compute stream from now on waits for the copies.
  void before_update();

  // How long the compute stream stood still for the copies, once the device has finished the step: from take() until
  // its next work could start, and before the update.
  double stall_seconds();

  // Waits for the copies and hands out the bytes in order, piece by piece. Ends at the first error.
  absl::Status read(const std::function<absl::Status(const at::Tensor& bytes)>& piece);

 private:
  at::Device device_;
  at::Tensor memory_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> ready_, resumed_, copied_, wait_begin_, wait_end_;
  bool waited_ = true; // before_update() was called since take()
  bool timed_ = false;
};

} // namespace distill::checkpoint
