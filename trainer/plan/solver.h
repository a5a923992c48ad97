#pragma once

#include <functional>
#include <vector>

#include "trainer/models/activation_policy.h"

namespace distill::plan {

// How many blocks are under each policy.
struct PolicyCounts {
  int64_t keep = 0;
  int64_t recompute = 0;
  int64_t offload = 0;
  int64_t offload_input = 0;
};

// The counts as a policy for each block: what returns latest from the backward pass's end lies first (inputs on the
// host, recomputed blocks), the blocks under `keep` come last and are freed first; offloaded blocks are spread evenly,
// so that the copies of one block overlap with the computation of several.
std::vector<models::ActivationPolicy> arrange(const PolicyCounts& counts);

struct Solution {
  std::vector<models::ActivationPolicy> policies; // empty: nothing fits
  double seconds = 0;
  int64_t mixes = 0; // considered: all counts that add up to the blocks
  int64_t checked = 0; // whose memory was run on the timeline
};

// The fastest of all mixes that fit, over every combination of counts. `seconds` is asked for all of them; `fits` in
// the order of time until the answer is yes, except for mixes that leave at least as much on the device as one that did
// not fit. Ties go to the mix that leaves less.
Solution fastest_mix(
    int64_t blocks, const std::function<double(const std::vector<models::ActivationPolicy>&)>& seconds,
    const std::function<bool(const std::vector<models::ActivationPolicy>&)>& fits);

} // namespace distill::plan
