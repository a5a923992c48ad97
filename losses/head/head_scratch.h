#pragma once

#include <ATen/core/Tensor.h>

#include "losses/head/chunk_bytes.h"
#include "losses/head/inputs.h"

// This file sizes the head's arena and cuts matrices out of it.
namespace distill::losses {

// Returns the sizes that decide the chunks. `device` is the device type whose kernels run; inputs may be meta tensors.
HeadShape head_shape(
    const LinearHeadInputs& inputs, const LossOptions& options, bool needs_grad, c10::DeviceType device);

// A Scratch cuts the arena into matrices whose rows start 256 bytes apart: from the front those of the whole call, from
// the back those of a chunk. A chunk's matrices may lie on rows of the last front matrix that later chunks will write.
class Scratch {
 public:
  // `arena`: uint8, a multiple of 256 bytes.
  explicit Scratch(at::Tensor arena) : arena_(std::move(arena)), back_(arena_.numel()) {}

  at::Tensor matrix(int64_t rows, int64_t columns, at::ScalarType type);

  // From now on matrices of a new chunk are cut from the back and replace the last chunk's. `unused`: the rows at
  // the end of the last matrix() that are not in use yet.
  void begin_chunk(int64_t unused);
  at::Tensor chunk_matrix(int64_t rows, int64_t columns, at::ScalarType type);

 private:
  at::Tensor cut(int64_t begin, int64_t rows, int64_t columns, at::ScalarType type) const;

  at::Tensor arena_;
  int64_t used_ = 0; // bytes at the front
  int64_t last_row_ = 0; // bytes of a row of the last matrix()
  int64_t in_use_ = 0; // bytes at the front that a chunk's matrices must not touch
  int64_t back_; // the chunk's matrices begin here
};

} // namespace distill::losses
