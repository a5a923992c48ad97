#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

// Reads the records of a run from metrics.jsonl. The files are not trusted.
namespace distill::trainer {

// The losses of the steps up to `last_step`, in order, without steps that had no targets. Empty where there is no
// metrics.jsonl.
absl::StatusOr<std::vector<double>> recorded_losses(const std::string& run_dir, int64_t last_step);

// Compares the records of a step in the metrics.jsonl of two folders, except for times, and describes the differences
// as text. NotFound: one of the files has no record of the step.
absl::StatusOr<std::string> compare_recorded_steps(
    const std::string& run_dir, const std::string& other_dir, int64_t step);

} // namespace distill::trainer
