#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/durable_file.h"
#include "trainer/metrics/event_file.h"
#include "trainer/metrics/json_lines.h"

namespace distill::metrics {

// Every number of a line of metrics.jsonl, by its tag: "train/" and the name, or for an evaluation "eval/" and the
// name; members of an object have their own name after the object's. True and false are 1 and 0. Null has no point.
// The tag of a lower bound ends with "_lower_bound", that of an estimate with "_estimate".
// Without the step and the time, which each point has anyhow.
std::vector<Scalar> scalars_of(const nlohmann::ordered_json& record);

// Writes the curves of metrics.jsonl, and texts, for TensorBoard. The folder has one event file with content: opening
// it writes a new one, from the lines of metrics.jsonl and the texts of the earlier files, and empties these. A resumed
// run has therefore every point once, whatever a killed job has left.
class Tensorboard {
 public:
  // metrics_file: metrics.jsonl, which holds the kept records only. Texts of evaluations that are not kept go.
  static absl::StatusOr<Tensorboard> open(
      const std::string& folder, const std::string& metrics_file, const KeptSteps& kept);

  // A line of metrics.jsonl, with the time at which it was written. Visible to readers when this returns.
  absl::Status append(const nlohmann::ordered_json& record);
  // A text (Markdown) of the evaluation after `step` steps.
  absl::Status text(const std::string& tag, int64_t step, std::string_view text);
  // See JsonLines::sync().
  absl::Status sync() const {
    return file_.sync();
  }

 private:
  explicit Tensorboard(base::DurableFile file) : file_(std::move(file)) {}

  base::DurableFile file_;
};

} // namespace distill::metrics
