#pragma once

#include "trainer/float8_gate/teacher_error.h"

// The search for the products of a teacher that must stay in the compute dtype, so that the float8 teacher is close
// enough to the exact one.
namespace distill::float8_gate {

// The limits of what float8 may change in a teacher.
struct Limits {
  double mean_kl = 0; // nats
  double p99_kl = 0; // nats; 0: not limited

  bool hold(const TeacherError& error) const {
    return error.mean_kl <= mean_kl && (p99_kl == 0 || error.p99_kl <= p99_kl);
  }
  // "a mean KL of at most 0.03 nats (float8.max_mean_kl)", with the percentile where it is limited
  std::string text() const;
};

// The effect of one product: the error of the teacher with this product alone in float8.
struct ProductError {
  models::BlockProduct product;
  double mean_kl = 0; // nats
  double operations = 0; // its share of the operations of all products, a fraction
  bool kept = true; // stays in float8
};

struct ExceptionSearch {
  TeacherError before; // with all the products that were asked for
  TeacherError after; // with those that are left
  models::Float8Products products; // those that are left
  std::vector<ProductError> effects; // most KL for its operations first; empty: the limits hold without exceptions
  std::vector<std::string> exceptions; // for teacher.float8_exceptions
  bool found = false; // whether the limits hold
};

// Greedy: measures every product of model.config.float8 alone, on the first micro-batch that has a target, then gives
// back the one with the most KL for its operations until the limits hold. How many are given back at a time is
// estimated from the single errors, which nearly add up, and the result is always measured. `memory`: bytes that the
// hidden states of the models with single products may take.
absl::StatusOr<ExceptionSearch> find_exceptions(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, const Limits& limits, const ComparisonOptions& options, int64_t memory);

} // namespace distill::float8_gate
