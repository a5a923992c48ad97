#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/float8_gate/exceptions.h"
#include "trainer/tools/evaluation_config.h"

namespace distill::trainer {

// The options of `distill quantize`.
struct QuantizeRequest {
  EvaluationRequest models; // `teacher` and `data` as for `distill eval`; `student` is not read
  double max_mean_kl = 0; // nats; 0: float8.max_mean_kl
  int64_t tokens = 0; // to measure on; 0: float8.gate_tokens
};

struct QuantizeReport {
  std::string what; // model, precision, device, for people
  float8_gate::Limits limits;
  float8_gate::ExceptionSearch search;
  double seconds = 0;

  std::string text() const; // a table for people, with the lines for the configuration
  std::string json() const;
};

// Measures the teacher in float8 on the text that a run would use (float8_gate::check_teacher), and finds the
// exceptions with which it is within the limits. It needs one process on one device. The teacher is never in memory as
// a whole.
absl::StatusOr<QuantizeReport> quantize_teacher(const QuantizeRequest& request);

} // namespace distill::trainer
