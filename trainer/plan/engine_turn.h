#pragma once

#include <optional>
#include <string>

#include "trainer/plan/memory_prediction.h"

namespace distill::plan {

// The device between two steps of an on-policy run, when an engine that uses the same GPUs writes a round.
struct EngineTurn {
  int64_t held = 0; // bytes of the device that the trainer holds then, the driver and libraries included
  int64_t moved = 0; // bytes of its state that are in host memory then; 0: none is moved
  int64_t left = 0; // bytes of the device for the engine; 0: the device's memory is not known
  bool automatic = false; // onpolicy.offload: auto has decided

  std::string text() const;
};

// nullopt: there is no such turn: the run is not on-policy, or the engine works while it trains. `memory` gets the host
// memory that the state takes. `device_bytes` 0: unknown.
std::optional<EngineTurn> plan_engine_turn(
    const RunShape& shape, int64_t device_bytes, MemoryPrediction& memory, std::vector<std::string>& overflows);

} // namespace distill::plan
