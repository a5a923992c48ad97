#pragma once

#include <optional>

#include "trainer/precision/exceptions.h"

// The check of a float8 teacher before a run.
namespace distill::precision {

Limits limits_of(const config::Config& config);
// Tokens to measure on, over all ranks.
int64_t gate_tokens(const config::Config& config, const trainer::Environment& environment);

// Measures the float8 teacher against the same teacher in its compute dtype, before either is loaded, on `data`. All
// ranks call it. FailedPrecondition, with the figures and what would help: the error is above the limits of the
// configuration. nullopt: the teacher has no float8 products, or float8.gate is false.
absl::StatusOr<std::optional<TeacherError>> check_teacher(
    const config::Config& config, const trainer::Environment& environment, const sharding::Mesh& mesh,
    const trainer::ModelSource& teacher, const data::Dataset& data);

} // namespace distill::precision
