#pragma once

#include <absl/status/statusor.h>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"

namespace distill::trainer {

struct CaptureResult {
  bool stopped_by_signal = false; // complete files of the cache stay
};

// Checks what a capture reads, and prints the size of its cache and the memory plan; writes nothing.
absl::Status write_cache_dry_run(const config::Config& config, const launch::RankInfo& ranks);

// Runs the teacher over data.train and data.eval on this rank, and writes its predictions to teacher.cache, or goes on
// where an earlier capture with the same result stopped. `config` was checked for config::Purpose::kCapture.
absl::StatusOr<CaptureResult> write_cache(
    const config::Config& config, const launch::RankInfo& ranks, const launch::StopSignal& stop);

} // namespace distill::trainer
