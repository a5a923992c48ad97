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

// Bytes of the device that are taken outside the allocator: the driver, libraries, communicators. 0 on the CPU.
struct OutsideAllocator {
  int64_t start = 0; // before the ranks are joined
  int64_t joined = 0; // with the communicators
  int64_t end = 0; // after the last step
};
int64_t outside_allocator(at::Device device); // at this moment

// What a run stands on, on one rank, before any model is opened: its configuration, its device, its place among the
// other ranks, and a watchdog that finds a rank that hangs.
class RunContext {
 public:
  // Settles the device and joins the other ranks. `stop` outlives the context.
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
  const OutsideAllocator& outside() const { // without `end`
    return outside_;
  }
  launch::Watchdog& watchdog() {
    return *watchdog_;
  }

  // The last steps have been read: leaves the other ranks in good order. Waits for a communicator that does not close
  // no longer than run.grace_s, or 30 s where that is 0.
  void leave();
  // What a rank that hears no more from others says it knows; `error`: how it noticed. Where a device hangs in a
  // collective, nothing that frees its memory would come back: the process ends here. Otherwise Unavailable.
  absl::Status lost_ranks(int64_t step, const std::string& error) const;

 private:
  RunContext(const config::Config& config, const launch::RankInfo& ranks, const Environment& environment)
      : config_(config), environment_(environment), ranks_(ranks) {}
  absl::Status join_others(const launch::StopSignal& stop);
  void start_watchdog(const launch::StopSignal& stop);

  config::Config config_;
  Environment environment_;
  launch::RankInfo ranks_;
  OutsideAllocator outside_;
  std::unique_ptr<sharding::Mesh> mesh_;
  std::unique_ptr<launch::Watchdog> watchdog_; // writes down what the mesh knows
};

} // namespace distill::trainer
