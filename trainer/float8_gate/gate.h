#pragma once

#include <optional>

#include "trainer/float8_gate/exceptions.h"

// The check of a float8 teacher before a run.
namespace distill::float8_gate {

Limits limits_of(const config::Config& config);
// Tokens to measure on, over all ranks.
int64_t gate_tokens(const config::Config& config, const trainer::Environment& environment);

// The micro-batches of `data` to measure on, this rank's share of gate_tokens(). FailedPrecondition, with the number of
// tokens that fit: their hidden states do not fit into this rank's free memory.
absl::StatusOr<std::vector<data::Batch>> gate_batches(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const models::ModelConfig& teacher, const data::Dataset& data);

// Measures the float8 teacher against the same teacher in its compute dtype, before either is loaded, on `data`. All
// ranks call it. FailedPrecondition, with the figures and what would help: the error is above the limits of the
// configuration, or the tokens do not fit (gate_batches). nullopt: the teacher has no float8 products, or float8.gate
// is false.
absl::StatusOr<std::optional<TeacherError>> check_teacher(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const models::ModelSource& teacher, const data::Dataset& data);

// Measures in the same way what float8 changes in the frozen weights of a student with adapters. There is no limit: the
// adapters learn what float8 takes. `student`: with or without its adapter, which is left out.
absl::StatusOr<std::optional<TeacherError>> measure_base(
    const config::Config& config, trainer::Environment environment, const sharding::Mesh& mesh,
    const models::ModelSource& student, const data::Dataset& data);

} // namespace distill::float8_gate
