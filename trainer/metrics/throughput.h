#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/metrics/flops.h"
#include "trainer/metrics/step_metrics.h"

namespace distill::metrics {

// Completes the records of a run's steps, whose seconds are known: speed, MFU in both conventions, memory.
class Throughput {
 public:
  // `teacher`: operations for one of the tokens that it reads. `teacher_seq_len`: of its sequences, one for each of the
  // student's. `tokens_per_step`: that the student reads, over all ranks.
  Throughput(
      at::Device device, const models::ModelConfig& student, const TokenFlops& teacher, int64_t seq_len,
      int64_t teacher_seq_len, int64_t tokens_per_step, int64_t world_size);

  void complete(StepMetrics& record) const;

 private:
  at::Device device_;
  double tokens_per_step_;
  double peak_flops_; // of all ranks; 0: unknown
  double causal_flops_, full_flops_; // for one token, of the student's three passes and the teacher's one
};

} // namespace distill::metrics
