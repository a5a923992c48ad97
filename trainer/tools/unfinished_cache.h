#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "trainer/teacher_cache/cached_rows.h"
#include "trainer/tools/capture_plan.h"

namespace distill::trainer {

// A cache that a training run of an earlier version began (teacher.source: capture). Its parts hold stretches in the
// order of the run's steps; a capture adds those that are missing, in parts of its own.
class UnfinishedCache {
 public:
  // Null: teacher.cache has none. Otherwise the plan's manifest becomes that of such a cache, as far as it says how a
  // capture is divided. FailedPrecondition: it cannot take all of the data. Errors as Index::open and CachedRows::open.
  static absl::StatusOr<std::unique_ptr<UnfinishedCache>> open(
      const config::Config& config, const Environment& environment, const CaptureInputs& inputs,
      teacher_cache::Manifest& manifest);

  // Whether the rows of a stretch of inputs.data[data] with this context (contexts.h) are there.
  bool has(int64_t data, const data::Stretch& stretch, uint64_t context) const {
    return rows_[static_cast<size_t>(data)]->has(stretch, context);
  }

  // The micro-batches of `planned` that lack rows, divided into new parts of the same length. Reads all of the data.
  absl::StatusOr<std::vector<CapturePart>> missing(const std::vector<CapturePart>& planned) const;

 private:
  explicit UnfinishedCache(const CaptureInputs& inputs) : inputs_(inputs) {}

  const CaptureInputs& inputs_;
  std::vector<std::shared_ptr<teacher_cache::CachedRows>> rows_; // of each data set
  int64_t next_part_ = 0;
};

} // namespace distill::trainer
