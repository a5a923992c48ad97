#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

// Reading back what a run has recorded in metrics.jsonl. The files are not trusted.
namespace distill::trainer {

// Losses of the steps up to `last_step`, in order; steps without any target have none. A run that has recorded nothing
// has none.
absl::StatusOr<std::vector<double>> recorded_losses(const std::string& run_dir, int64_t last_step);

// Compares what metrics.jsonl of both folders says of the step, times aside; lines for people. NotFound: one of them
// holds no such step.
absl::StatusOr<std::string> compare_recorded_steps(
    const std::string& run_dir, const std::string& other_dir, int64_t step);

} // namespace distill::trainer
