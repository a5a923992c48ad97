#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/watchdog.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step/environment.h"

namespace distill::trainer {

// Bytes of this rank's device that are in use outside the allocator (device::bytes_outside_allocator). 0 on the CPU.
struct OutsideAllocator {
  int64_t start = 0; // with the driver, libraries' handles and their first kernels
  int64_t joined = 0; // with the communicators, each of which has run a collective
  int64_t end = 0; // after the last step
  int64_t others = 0; // of other processes, part of all of these
};

// The basis of a run on one rank, before any model is opened: its configuration, its device, its place among the other
// ranks, and a watchdog that finds a rank that hangs.
class RunContext {
 public:
  // Chooses the device and joins the other ranks. `stop` must outlive the context.
  static absl::StatusOr<std::unique_ptr<RunContext>> join(
      const config::Config& config, const launch::RankInfo& ranks, const launch::StopSignal& stop);

  const config::Config& config() const {
    return config_;
  }
  const Environment& environment() const {
    return environment_;
  }
  const launch::RankInfo& ranks() const {
    return ranks_;
  }
  const sharding::Mesh& mesh() const {
    return *mesh_;
  }
  const OutsideAllocator& outside() const { // `end` is not set
    return outside_;
  }
  launch::Watchdog& watchdog() {
    return *watchdog_;
  }

  // Call when the last steps have been read: closes the communicators together with the other ranks. Waits at most
  // run.grace_s, or 30 s if that is 0.
  void leave();
  // For a rank that has lost others: reports `error`, by which it noticed, and the ranks that are behind. On a GPU the
  // process ends here, since freeing memory would block on the collective that hangs; otherwise returns Unavailable.
  absl::Status lost_ranks(int64_t step, const std::string& error) const;

 private:
  RunContext(const config::Config& config, const launch::RankInfo& ranks, const Environment& environment)
      : config_(config), environment_(environment), ranks_(ranks) {}
  absl::Status join_others(const launch::StopSignal& stop);
  void measure_device();
  void start_watchdog(const launch::StopSignal& stop);

  config::Config config_;
  Environment environment_;
  launch::RankInfo ranks_;
  OutsideAllocator outside_;
  std::unique_ptr<sharding::Mesh> mesh_;
  std::unique_ptr<launch::Watchdog> watchdog_; // its report reads the mesh
};

} // namespace distill::trainer
