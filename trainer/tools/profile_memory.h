#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"

namespace distill::trainer {

struct ProfileOptions {
  int64_t steps = 3;
  std::string folder; // gets report.json, timeline.json, snapshot.pickle, and the run's folder
};

// Trains for a few steps, counting every allocation, and compares with the plan: each phase's peak, each category's
// maximum, fragmentation, the loss head's share, tokens per second (the median without the first two steps). Every rank
// calls it; rank 0 writes the files. Returns report.json's content. The configuration's checkpoints and evaluations are
// left out.
absl::StatusOr<std::string> profile_memory(
    config::Config config, const launch::RankInfo& ranks, const ProfileOptions& options);

// Makes the readable table of a report.
std::string profile_text(const std::string& report_json);

} // namespace distill::trainer
