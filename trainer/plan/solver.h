#pragma once

#include <functional>
#include <vector>

#include "trainer/models/activation_policy.h"

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

// The fastest of all mixes that fit, over every combination of counts. `seconds` is called for all of them. `fits` is
// called in order of time until it returns true, except for mixes that leave at least as much on the device as one that
// did not fit. Of equally fast mixes, the one that leaves less on the device is tried first.
Solution fastest_mix(
    int64_t blocks, const std::function<double(const std::vector<models::ActivationPolicy>&)>& seconds,
    const std::function<bool(const std::vector<models::ActivationPolicy>&)>& fits);

} // namespace distill::plan
