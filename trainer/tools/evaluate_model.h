#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/metrics/step_metrics.h"

namespace distill::trainer {

struct EvalReport {
  std::string what; // models, length, dtype and loss, for people
  metrics::LossMeans means;
  std::vector<metrics::TeacherMeans> teachers; // of several, the means of each
  int64_t samples = 0; // sequences
  double seconds = 0;

  std::string text() const; // a table for people
  std::string json() const; // one object with the names of metrics.jsonl
};

// Evaluates student.path on data.eval, over eval.batches micro-batches (0: the whole set), against the teacher where
// there is one. `config` was checked for config::Purpose::kEvaluate.
absl::StatusOr<EvalReport> evaluate_model(config::Config config);

} // namespace distill::trainer
