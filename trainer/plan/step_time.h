#pragma once

#include "trainer/metrics/phase_timer.h"
#include "trainer/plan/block_time.h"
#include "trainer/plan/machine.h"
#include "trainer/plan/memory_prediction.h"
#include "trainer/plan/run_shape.h"

namespace distill::plan {

// Seconds of one optimizer step on every rank, by the phases that metrics.jsonl reports.
struct StepTime {
  metrics::PhaseSeconds phases{};
  double communication = 0; // seconds of all-gathers and reductions, overlapped with the compute stream
  double copies = 0; // seconds of copies to and from the host, also overlapped
  double exposed = 0; // seconds that the compute stream loses to both; included in `phases`

  double total() const;
  double tokens_per_second = 0; // of all ranks
};

// The student's forward and backward passes over one micro-batch under any policies.
class PassTimer {
 public:
  PassTimer(const RunShape& shape, const Machine& machine);

  struct PassTime {
    double forward = 0; // seconds, waiting for copies included
    double backward = 0;
    double copies = 0; // seconds that they run
  };
  PassTime time(const std::vector<models::ActivationPolicy>& policies) const;

 private:
  struct Copies {
    double all = 0, input = 0; // seconds to copy one block from the host
  };
  const BlockTime& block_of(size_t block) const {
    return blocks_[static_cast<size_t>(kinds_[block])];
  }

  std::vector<int64_t> kinds_; // of each block
  std::vector<BlockTime> blocks_; // by kind
  std::vector<Copies> copies_; // by kind
  double leaving_ = 1; // a copy to the host takes this many times as long
  double copy_cost_ = 0;
};

// Predicts a step under any policies and places of the optimizer's state, from the times of its blocks (block_time.h).
// The copies of offloaded blocks are simulated block by block on one channel, and the updates of state in host memory
// unit by unit.
class StepTimer {
 public:
  // `shape` and `machine` must outlive this object; the shape's own policies and places are not read.
  StepTimer(const RunShape& shape, const Machine& machine, const GatherPrediction& gathers);

  StepTime time(
      const std::vector<models::ActivationPolicy>& policies, const std::vector<models::StatePlace>& places) const;

 private:
  struct UnitState {
    double parameters = 0; // of this rank's shard
    bool is_block = false;
  };
  // Returns the part of each phase in which it waits.
  metrics::PhaseSeconds add_communication(StepTime& time) const;
  void add_updates(const std::vector<models::StatePlace>& places, double leaving, StepTime& time) const;

  const RunShape& shape_;
  const Machine& machine_;
  GatherPrediction gathers_;
  PassTimer pass_;
  StepTime fixed_; // what does not depend on policies and places
  double around_ = 0; // seconds of embedding and final norm in a forward pass
  double rounding_ = 0; // seconds for a micro-batch's gradients to be rounded into shards
  double reduces_ = 0; // seconds of reductions in a micro-batch
  std::vector<UnitState> states_; // of all units
};

// The step of the shape's policies and places.
StepTime predict_time(const RunShape& shape, const Machine& machine, const GatherPrediction& gathers);

} // namespace distill::plan
