#pragma once

#include <ATen/core/Tensor.h>

#include "data/batch.h"
#include "trainer/plan/run_shape.h"

// The common parts of simulated runs of the trainer and of a capture.
namespace distill::plan {

inline constexpr int64_t kMiB = 1 << 20;
// cuBLAS's scratch on Hopper, taken from the allocator at the first product; a meta tensor.
at::Tensor blas_workspace();

// Sets libtorch's deterministic mode as the run will: attention chooses its backend by it.
class DeterministicScope {
 public:
  explicit DeterministicScope(bool deterministic);
  ~DeterministicScope();
  DeterministicScope(const DeterministicScope&) = delete;
  DeterministicScope& operator=(const DeterministicScope&) = delete;

 private:
  bool before_;
};

// A micro-batch of the teacher with this number in which every token has a target. Nothing reads the tokens: their
// pages are never touched.
data::Batch simulated_batch(const RunShape& shape, int64_t teacher);

} // namespace distill::plan
