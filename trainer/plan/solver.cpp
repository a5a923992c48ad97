#include "trainer/plan/solver.h"

namespace distill::plan {

using models::ActivationPolicy;

std::vector<ActivationPolicy> arrange(const PolicyCounts& counts) {
  const int64_t blocks = counts.keep + counts.recompute + counts.offload + counts.offload_input;
  std::vector<ActivationPolicy> others;
  others.insert(others.end(), static_cast<size_t>(counts.offload_input), ActivationPolicy::kOffloadInput);
  others.insert(others.end(), static_cast<size_t>(counts.recompute), ActivationPolicy::kRecompute);
  others.insert(others.end(), static_cast<size_t>(counts.keep), ActivationPolicy::kKeep);
  std::vector<ActivationPolicy> policies;
  size_t next = 0;
  int64_t placed = 0; // offloaded blocks so far
  for (int64_t i = 0; i < blocks; ++i) {
    // Spreads the offloaded blocks evenly: block i is one if at most i * offload / blocks of the blocks before it are.
    if (placed < counts.offload && placed * blocks <= i * counts.offload) {
      policies.push_back(ActivationPolicy::kOffload);
      ++placed;
    } else {
      policies.push_back(others[next++]);
    }
  }
  return policies;
}

namespace {

struct Mix {
  PolicyCounts counts;
  double seconds = 0;
};

// Whether `mix` leaves at least as much on the device as `other`. A block under keep leaves more than one under
// recompute, which leaves its input; an offloaded block leaves nothing.
bool keeps_as_much(const PolicyCounts& mix, const PolicyCounts& other) {
  const bool copies_as_much = mix.offload > 0 || other.offload == 0; // two may be on the device while copied
  return copies_as_much && mix.keep >= other.keep && mix.keep + mix.recompute >= other.keep + other.recompute;
}

} // namespace

Solution fastest_mix(
    int64_t blocks, const std::function<double(const std::vector<ActivationPolicy>&)>& seconds,
    const std::function<bool(const std::vector<ActivationPolicy>&)>& fits) {
  std::vector<Mix> mixes;
  for (int64_t keep = 0; keep <= blocks; ++keep) {
    for (int64_t recompute = 0; keep + recompute <= blocks; ++recompute) {
      for (int64_t offload = 0; keep + recompute + offload <= blocks; ++offload) {
        Mix mix{{keep, recompute, offload, blocks - keep - recompute - offload}};
        mix.seconds = seconds(arrange(mix.counts));
        mixes.push_back(mix);
      }
    }
  }
  std::stable_sort(mixes.begin(), mixes.end(), [](const Mix& a, const Mix& b) {
    return std::tie(a.seconds, a.counts.keep, a.counts.recompute) <
        std::tie(b.seconds, b.counts.keep, b.counts.recompute);
  });
  Solution solution;
  solution.mixes = static_cast<int64_t>(mixes.size());
  std::vector<PolicyCounts> too_much;
  for (const Mix& mix : mixes) {
    const bool hopeless = std::any_of(too_much.begin(), too_much.end(), [&](const PolicyCounts& counts) {
      return keeps_as_much(mix.counts, counts);
    });
    if (hopeless) {
      continue;
    }
    std::vector<ActivationPolicy> policies = arrange(mix.counts);
    ++solution.checked;
    if (fits(policies)) {
      solution.policies = std::move(policies);
      solution.seconds = mix.seconds;
      break;
    }
    too_much.push_back(mix.counts);
  }
  return solution;
}

} // namespace distill::plan
