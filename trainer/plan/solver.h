#pragma once

#include <functional>
#include <vector>

#include "trainer/models/activation_policy.h"
#include "trainer/models/state_place.h"
#include "trainer/plan/saved_bytes.h"

namespace distill::plan {

// The number of blocks under each policy.
struct PolicyCounts {
  int64_t keep = 0;
  int64_t recompute = 0;
  int64_t offload = 0;
  int64_t offload_input = 0;
};

// Turns the counts into a policy for each block, in forward order. Blocks under `offload_input` and `recompute` come
// first; blocks under `keep` come last, since the backward pass frees those first; blocks under `offload` are spread
// evenly, so that the copies of one block overlap with the computation of several.
std::vector<models::ActivationPolicy> arrange(const PolicyCounts& counts);

// One way to store the optimizer's state.
struct Placement {
  std::vector<models::StatePlace> places; // of the state of each block
  int64_t device_bytes = 0; // of all units' state that is on the device
  int64_t host_bytes = 0;
};

// Places for the blocks' state, `on_host` of it on the host. Blocks on the host are those before the last one, since
// the next step uses late blocks last, and their updates have until then. The last block, whose place is also that of
// the lm_head, comes to the host when all between it and the first block are there, and the first one, whose place is
// also that of the embedding, after it. Of the blocks on the host the CPU updates `by_cpu`, spread evenly, since its
// updates and those through the device run at the same time, both in forward order.
std::vector<models::StatePlace> state_placement(int64_t blocks, int64_t on_host, int64_t by_cpu = 0);

// With none on the host, then one block more each time, to all of them.
std::vector<std::vector<models::StatePlace>> state_placements(int64_t blocks);

// What is chosen for every block.
struct Mix {
  std::vector<models::ActivationPolicy> policies;
  size_t placement = 0; // of Choices::placements
};

struct Choices {
  std::vector<int64_t> kinds; // of each block
  std::vector<BlockBytes> saved; // by a block of each kind
  std::vector<models::ActivationPolicy> policies; // of each block; empty: any mix
  std::vector<Placement> placements; // one at least, those with less on the host first
};

struct Solution {
  Mix mix; // no policies: nothing fits
  double seconds = 0;
  int64_t mixes = 0; // mixes considered: all counts that add up to the number of blocks, with every placement
  int64_t checked = 0; // mixes whose memory was simulated
};

// The limits that a mix exceeds.
struct LimitsExceeded {
  int64_t tensors = 0; // bytes by which the peak of tensors must fall at least
  bool device = false; // the device's memory is exceeded, by tensors or by what the allocator takes for them
  bool host = false; // the host's memory is exceeded

  bool fits() const {
    return tensors <= 0 && !device && !host;
  }
};

// Finds the fastest of all mixes that fit, over every combination of counts and every placement. `seconds` must not be
// less with more of the state on the host, nor than with all blocks under `keep`. `exceeded` is called in order of
// time, for one placement after the other, except for mixes that cannot fit, given one that did not: mixes that leave
// at least as much on the device, mixes whose saved tensors and state on the device are smaller by less than
// LimitsExceeded::tensors (the peak falls by no more than that), and mixes that leave at least as much on the host. Of
// equally fast mixes, the one with less state on the host is taken, and of those the one that saves less on the device.
Solution fastest_mix(
    const Choices& choices, const std::function<double(const Mix&)>& seconds,
    const std::function<LimitsExceeded(const Mix&)>& exceeded);

} // namespace distill::plan
