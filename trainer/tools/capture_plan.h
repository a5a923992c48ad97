#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <vector>

#include "data/prefetch.h"
#include "trainer/plan/memory_prediction.h"
#include "trainer/setup/inputs.h"
#include "trainer/teacher_cache/manifest.h"

// The plan of a capture: the files that it writes, and the memory that it takes.
namespace distill::trainer {

// The micro-batches of one of the data sets whose rows one file of the cache holds.
struct CapturePart {
  int64_t number = 0; // of the file
  int64_t data = 0; // index into CaptureInputs::data
  std::vector<data::SampleRange> micro_batches;
};

struct CapturePlan {
  teacher_cache::Manifest manifest;
  std::vector<CapturePart> parts; // of the whole cache
  int64_t rows = 0; // tokens with a target in the whole cache, at most
  int64_t bytes = 0; // of the whole cache, about
  plan::MemoryPrediction memory; // of one rank
  int64_t device_bytes = 0; // of one rank's device, or memory.limit_gib
  std::vector<std::string> overflows; // a sentence for each limit that is exceeded

  // The first line is "cache: work/cache, 12 parts, 1234567 tokens with a target of 8192 bytes each (...), 10.1 GB", or
  // without numbers of parts and tokens if the data are not known; the others are the memory plan.
  std::vector<std::string> lines(const std::string& folder) const;
  std::string json(const std::string& folder) const;
  // OutOfRange: the memory plan does not fit; the message has both numbers and what takes less.
  absl::Status check_fits() const;
};

// Completes a run's configuration for a capture, which has neither a run folder nor a global batch. The teacher runs,
// whatever the run will read it from, and its units are gathered by all-gathers.
config::Config capture_config(config::Config config, int64_t world_size);

// `world_size`, `ranks_on_host`: of the capture. InvalidArgument: an encoding that does not suit the teacher.
// OutOfRange: the device cannot hold what the capture takes (check_fits), unless memory.on_overflow is warn.
absl::StatusOr<CapturePlan> plan_capture(
    const config::Config& config, const Environment& environment, const CaptureInputs& inputs, int64_t world_size,
    int64_t ranks_on_host);

// Plans `distill capture` with a run's configuration on paper: without a device, weights or, if they are not here,
// data. It does not check whether the plan fits. nullopt: the configuration has no teacher.path or no teacher.cache.
absl::StatusOr<std::optional<CapturePlan>> capture_on_paper(
    const config::Config& config, int64_t world_size, int64_t ranks_per_node);

// Looks for the files that an earlier capture with the same result has left in the folder; nullopt: it is no cache yet.
// Of its parts head, table and foot are read. FailedPrecondition: it is the cache of something else, with both values,
// or has parts or other files and no manifest. DataLoss: parts that are damaged, or of another cache; if they are
// removed, the capture computes them again.
absl::StatusOr<std::optional<teacher_cache::Manifest>> earlier_capture(
    const std::string& folder, const teacher_cache::Manifest& manifest);

// FailedPrecondition: the disk cannot hold the files that are not there yet; both numbers are named. `found`: bytes of
// the cache that are there.
absl::Status check_space(const CapturePlan& plan, const std::string& folder, int64_t found);

} // namespace distill::trainer
