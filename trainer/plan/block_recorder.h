#pragma once

#include <list>
#include <memory>

#include "trainer/device/simulation.h"
#include "trainer/models/block.h"

namespace distill::plan {

// Makes simulated runs fast. All blocks of one kind make the same allocations, so each kind of pass over each kind of
// block runs once on meta tensors while its allocations are recorded; from then on the recording is replayed, which
// costs a fraction of dispatching the ops. A recorder may serve any number of runs for one target device.
class BlockRecorder {
 public:
  BlockRecorder();
  ~BlockRecorder();
  BlockRecorder(const BlockRecorder&) = delete;
  BlockRecorder& operator=(const BlockRecorder&) = delete;

  // Functions for one run in this simulation. The recorder and the simulation must outlive them.
  models::BlockFunctions functions(device::Simulation& simulation);

 private:
  class Recording;
  struct Key;
  Recording* find(const Key& key);

  std::list<Recording> recordings_;
};

} // namespace distill::plan
