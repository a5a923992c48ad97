#pragma once

#include <absl/status/statusor.h>

#include "trainer/evaluator.h"

namespace distill::trainer {

// FailedPrecondition: `mass`, the teacher's mean probability of tokens that have no part in the loss, is above
// teacher.max_dropped_mass. nullopt: there are no such tokens, or the probability is not known. `config`: that of the
// teacher, of several.
absl::Status judge_dropped_mass(const config::Config& config, std::optional<double> mass);

// Measures it before the run over one micro-batch of each rank, for each teacher the first of its own in the first of
// `data` that has some, and judges all of them. A teacher without documents is not judged. Rank 0 logs it. All ranks
// call this together. `data`: null where a run has none of a kind.
absl::Status check_dropped_mass(
    const config::Config& config, MicroBatchRunner& micro,
    const std::vector<std::shared_ptr<const data::Dataset>>& data, const sharding::Mesh& mesh);

} // namespace distill::trainer
