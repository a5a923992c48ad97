#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "trainer/metrics/json_lines.h"

// Reads the records of a run from metrics.jsonl. The files are not trusted.
namespace distill::trainer {

// Means of a step or of an evaluation that had targets. NaN: not recorded.
struct RecordedMeans {
  bool evaluation = false;
  double loss = 0;
  double hard = 0;
  double teacher_ce = 0;
  double forward_kl = 0;
  int64_t valid_tokens = 0; // 0: not recorded
};

// Calls `visit` for the records that are kept, in order. None where there is no metrics.jsonl.
absl::Status for_each_recorded_means(
    const std::string& run_dir, const metrics::KeptSteps& kept, const std::function<void(const RecordedMeans&)>& visit);

// Compares the records of a step in the metrics.jsonl of two folders, except for times, and describes the differences
// as text. NotFound: one of the files has no record of the step.
absl::StatusOr<std::string> compare_recorded_steps(
    const std::string& run_dir, const std::string& other_dir, int64_t step);

} // namespace distill::trainer
