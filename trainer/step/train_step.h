#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "trainer/config/config.h"
#include "trainer/metrics/readout.h"
#include "trainer/metrics/step_record.h"
#include "trainer/micro_batch.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/mesh.h"
#include "trainer/step_gate.h"

namespace distill::trainer {

// Optimizer steps on the device, which the host queues and does not wait for. A step's numbers come back when the next
// one has been queued (on the CPU at once), so that the device always has work.
class StepQueue {
 public:
  // All of them outlive this. `checks` null: none.
  StepQueue(
      const config::Config& config, const sharding::Mesh& mesh, sharding::ModelShards& student, MicroStep& micro,
      optim::AdamW& optimizer, const sharding::SlotChecks* checks);

  struct Start {
    bool failed = false; // this rank cannot go on, which all learn from the step's numbers
    bool more = true; // steps follow
    std::function<void()> before_update; // called when the optimizer's work is next
  };
  // Queues one step; nothing in it waits for the device. `record`: what the host knows of it.
  void push(const GlobalBatch& batch, metrics::StepRecord record, const Start& start);

  struct DoneStep {
    metrics::StepRecord record; // with losses, gradient norm, phases and seconds
    int64_t failed_ranks = 0;
    std::string changed_unit; // parallel.debug_checks found another checksum; empty: none
  };
  // The oldest step whose numbers are due; `all`: the oldest that has been queued. nullopt: none. Throws
  // metrics::DeviceTimeout when the device does not get there within parallel.timeout_s.
  std::optional<DoneStep> pop(bool all);

 private:
  const config::Config& config_;
  const sharding::Mesh& mesh_;
  sharding::ModelShards& student_;
  MicroStep& micro_;
  optim::AdamW& optimizer_;
  const sharding::SlotChecks* checks_;
  metrics::Readout readout_;
  std::deque<metrics::StepRecord> queued_;
};

} // namespace distill::trainer
