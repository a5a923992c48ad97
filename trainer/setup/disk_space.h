#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <string>

#include "trainer/config/config.h"
#include "trainer/models/model_config.h"

// Whether the disk of the run folder can hold what a run writes.
namespace distill::trainer {

struct DiskNeed {
  int64_t checkpoint_bytes = 0; // of one checkpoint: master weights and both moments in float32
  int64_t checkpoints = 0; // on the disk at once: checkpoint.keep and one that is being written, or fewer
  int64_t model_bytes = 0; // 0: the run writes no model

  int64_t bytes() const {
    return checkpoints * checkpoint_bytes + model_bytes;
  }
};

struct DiskSpace {
  std::string place; // the run folder, or the nearest folder above it that exists
  int64_t available_bytes = 0; // free space for this user, as the file system reports it; -1: it does not
  int64_t reused_bytes = 0; // size of complete checkpoints in the run folder, which new ones replace
};

// The most that a run of `steps` steps writes. Logs and metrics are not counted, nor are checkpoints that were set
// aside.
DiskNeed disk_need(const config::Config& config, const models::ModelConfig& student, int64_t steps);
DiskSpace disk_space(const std::string& run_dir);

// The sizes of all files below a folder; 0: there is none.
int64_t bytes_below(const std::string& folder);

// FailedPrecondition: the disk has no room for `needed` more bytes in the cache `folder`; the message has both numbers.
absl::Status check_cache_space(const std::string& folder, int64_t needed);

// A line of the start report.
std::string disk_line(const DiskNeed& need, const DiskSpace& space);
// A warning if the disk cannot hold what the run needs; empty: it can. This is no error, since space may be freed while
// the run trains, and a file system's numbers may be far from what a quota or an object store lets one write.
std::string disk_warning(const DiskNeed& need, const DiskSpace& space);

} // namespace distill::trainer
