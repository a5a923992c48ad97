#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/plan/machine.h"
#include "trainer/plan/memory_prediction.h"
#include "trainer/plan/run_shape.h"
#include "trainer/plan/step_time.h"

// What a run will need and how fast it will be, from the configuration and the models' shapes alone.
namespace distill::plan {

// A change of the configuration that fits.
struct Change {
  std::vector<std::pair<std::string, std::string>> settings; // key and value
  int64_t peak_bytes = 0;
  double seconds_per_token = 0; // of all ranks

  std::string text() const; // "memory.activation=recompute"
};

struct Plan {
  RunShape shape; // with a policy for every block
  Machine machine;
  MemoryPrediction memory;
  StepTime time;
  bool automatic = false; // memory.activation: auto
  int64_t mixes = 0; // that memory.activation: auto chose from
  int64_t budget_bytes = 0; // of tensors; 0: none
  int64_t device_bytes = 0; // what the device has, or memory.limit_gib
  std::vector<std::string> overflows; // what does not fit, a sentence each
  std::vector<Change> changes; // where it does not fit: up to three, the cheapest first

  bool fits() const {
    return overflows.empty();
  }
  std::string text() const; // a table for people
  std::vector<std::string> lines() const; // the few lines that every run begins with
  std::string json() const;
};

struct PlanRequest {
  const config::Config& config;
  const models::ModelConfig& student;
  const models::ModelConfig* teacher = nullptr;
  Target target;
  Machine machine;
  int64_t device_bytes = 0; // of the device at hand; 0: machine.memory_gib
  int64_t host_bytes = 0; // that a rank may take for offloading; 0: unknown, no limit
};

// InvalidArgument names the key. With memory.activation: auto and no mix that fits, the plan is that of the leanest mix
// and says what does not fit.
absl::StatusOr<Plan> make_plan(const PlanRequest& request);

// config.memory.machine, or the built-in table's entry.
absl::StatusOr<Machine> machine_of(const config::Config& config, bool cuda);

} // namespace distill::plan
