#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/metrics/step_metrics.h"
#include "trainer/onpolicy/rounds.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/micro_batch.h"

namespace distill::trainer {

// The first sequences of a round under the student that is about to learn from them, and under the teacher.
struct RoundCheck {
  metrics::LossMeans means; // over their on-policy tokens
  double engine_logprob = 0; // of these tokens, as the engine gave it, nats, mean; NaN: it gave none
  double own_logprob = 0; // as the student computes it

  // For the log.
  std::string line() const;
  // FailedPrecondition with both values: they differ by more than `limit` (0: no limit). With the student's own weights
  // and texts, they differ by rounding alone.
  absl::Status verdict(double limit) const;
};

// One micro-batch of the round on each rank, forward only. All ranks call it together; `engine_logprob` is known on
// rank 0 alone.
absl::StatusOr<RoundCheck> check_round(
    MicroBatchRunner& micro, const onpolicy::Round& round, int64_t micro_batch_size, const sharding::Mesh& mesh);

} // namespace distill::trainer
