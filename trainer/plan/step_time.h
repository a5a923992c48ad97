#pragma once

#include "trainer/metrics/phase_timer.h"
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

// Seconds for one block of a model, the mean over the blocks of its kind.
struct BlockTime {
  double forward = 0;
  double rebuild = 0; // recomputation: forward without the last product
  double backward = 0;
  double reduce = 0; // of its gradient
};

// Each product counts its operations at machine.matmul_flops and the traffic of its operands at machine.memory_bytes,
// every other kernel its traffic. The copies of offloaded blocks are simulated block by block on one channel.
StepTime predict_time(const RunShape& shape, const Machine& machine, const GatherPrediction& gathers);

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
  double seconds(const std::vector<models::ActivationPolicy>& policies) const {
    const PassTime t = time(policies);
    return t.forward + t.backward;
  }

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

} // namespace distill::plan
