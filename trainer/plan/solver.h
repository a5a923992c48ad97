#pragma once

#include <functional>
#include <vector>

#include "trainer/models/activation_policy.h"
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

struct Solution {
  std::vector<models::ActivationPolicy> policies; // empty: nothing fits
  double seconds = 0;
  int64_t mixes = 0; // mixes considered: all counts that add up to the number of blocks
  int64_t checked = 0; // mixes whose memory was simulated
};

// The limits that a mix exceeds.
struct LimitsExceeded {
  int64_t tensors = 0; // bytes by which the peak of tensors is too high for the device or its budget
  bool device = false; // the device's memory is exceeded, by tensors or by what the allocator takes for them
  bool host = false; // the host's memory is exceeded

  bool fits() const {
    return tensors <= 0 && !device && !host;
  }
};

// Finds the fastest of all mixes that fit, over every combination of counts. `kinds`: the kind of each block; `saved`:
// the bytes that a block of each kind saves. `seconds` is called for every mix. `exceeded` is called in order of time
// until a mix fits, except for mixes that cannot fit, given one that did not: mixes that leave at least as much on the
// device, mixes whose saved tensors on the device are smaller by less than LimitsExceeded::tensors (the peak falls by
// no more than that), and mixes that leave at least as much on the host. Of equally fast mixes, the one that leaves
// less on the device is tried first.
Solution fastest_mix(
    const std::vector<int64_t>& kinds, const std::vector<BlockBytes>& saved,
    const std::function<double(const std::vector<models::ActivationPolicy>&)>& seconds,
    const std::function<LimitsExceeded(const std::vector<models::ActivationPolicy>&)>& exceeded);

} // namespace distill::plan
