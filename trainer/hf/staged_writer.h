#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace distill::hf {

// Writes files from tensors of any device, with several threads: the caller converts values into buffers, and does not
// wait for the device to copy them; threads write each buffer at its place in the file, and another one computes the
// checksum in the file's order. Host memory is that of the buffers, 16 MiB for each thread and four more; they are
// pinned from the first tensor of a GPU on.
class StagedWriter {
 public:
  // `threads`: that write; 0: as many as the host has cores, at most 8.
  explicit StagedWriter(int threads = 0);
  ~StagedWriter(); // ends the threads; a file that is not finished has any content
  StagedWriter(const StagedWriter&) = delete;
  StagedWriter& operator=(const StagedWriter&) = delete;

  // Begins a file of `bytes` bytes. `keep_pages`: one that is there is overwritten in place, so that the system has no
  // new memory or blocks to find for it; else it is emptied first.
  absl::Status begin(const std::string& path, int64_t bytes, bool keep_pages);
  // The next bytes of the file: the elements of a contiguous tensor, converted to `dtype`. The tensor may be changed on
  // its device's current stream once this has returned. An error is the first one that any thread met.
  absl::Status append(const at::Tensor& values, at::ScalarType dtype);
  absl::Status append_bytes(std::string_view bytes);
  // Waits until the file has all of its bytes, puts it on the disk, and returns its checksum (XXH3).
  absl::StatusOr<uint64_t> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace distill::hf
