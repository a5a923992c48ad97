#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/plan/engine_turn.h"
#include "trainer/plan/machine.h"
#include "trainer/plan/memory_prediction.h"
#include "trainer/plan/run_shape.h"
#include "trainer/plan/step_time.h"

// The predicted memory and speed of a run, from the configuration and the models' shapes alone.
namespace distill::plan {

// A change of the configuration with which the run fits.
struct Change {
  std::vector<std::pair<std::string, std::string>> settings; // key and value
  int64_t peak_bytes = 0;
  double seconds_per_token = 0; // of all ranks, as if they were those of the plan without the change
  double tokens_per_second = 0; // of all ranks

  std::string text() const; // "memory.activation=recompute"
};

struct Plan {
  RunShape shape; // with a policy for every block, and a place for its optimizer state
  Machine machine;
  MemoryPrediction memory;
  StepTime time;
  bool automatic = false; // memory.activation: auto
  bool automatic_state = false; // memory.optimizer: auto
  bool automatic_tiles = false; // memory.tile_tokens: auto
  bool automatic_recompute = false; // memory.recompute: auto, with memory.activation: auto
  int64_t mixes = 0; // number of mixes that were chosen from
  int64_t budget_bytes = 0; // limit of tensors' bytes at the peak; 0: none
  int64_t device_bytes = 0; // the device's memory, or memory.limit_gib
  std::optional<EngineTurn> engine_turn; // of an on-policy run whose engine works while training waits
  std::vector<std::string> overflows; // a sentence for each limit that is exceeded
  std::vector<Change> changes; // if it does not fit: those of cheapest_changes()

  bool fits() const {
    return overflows.empty();
  }
  std::string text() const; // a table for people
  std::vector<std::string> lines() const; // the few lines that every run begins with
  std::vector<std::string> warnings() const; // about the choice of the machine, and attention without a fused kernel
  std::string json() const;
};

struct PlanRequest {
  config::Config config;
  const models::ModelConfig& student;
  trainer::Teachers teachers;
  Target target;
  Machine machine;
  int64_t device_bytes = 0; // of the present device; 0: use machine.memory_gib
  int64_t host_bytes = 0; // host memory that a rank may take for offloading; 0: unknown, no limit
  bool teacher_stream = false; // the training data has texts of the teacher's own
};

// InvalidArgument names the key. If no mix fits where memory.activation or memory.optimizer is auto, the plan is for
// the mix with least memory on the device and lists the limits that it exceeds. Where memory.tile_tokens is auto, tiles
// are taken if nothing fits without them, or if what fits is slower; memory.recompute is chosen by time, too.
absl::StatusOr<Plan> make_plan(const PlanRequest& request);

} // namespace distill::plan
