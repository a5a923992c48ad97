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

// Bytes that the mix saves on the device, without those on their way to the host or back.
int64_t bytes_on_device(const PolicyCounts& counts, const BlockBytes& saved) {
  return counts.keep * saved.all + counts.recompute * saved.input;
}

// At most this much is on its way to the host or back at one time: the tensors of two blocks.
int64_t bytes_in_flight(const PolicyCounts& counts, const BlockBytes& saved) {
  return counts.offload > 0 ? 2 * saved.all : counts.offload_input > 0 ? 2 * saved.input : 0;
}

int64_t bytes_on_host(const PolicyCounts& counts, const BlockBytes& saved) {
  return counts.offload * saved.all + counts.offload_input * saved.input;
}

// Whether `mix` cannot fit, given that `other` does not.
bool cannot_fit(const PolicyCounts& mix, const PolicyCounts& other, const Excess& excess, const BlockBytes& saved) {
  if (excess.device && keeps_as_much(mix, other)) {
    return true;
  }
  const int64_t others = bytes_on_device(other, saved) + bytes_in_flight(other, saved);
  if (excess.tensors > 0 && others - bytes_on_device(mix, saved) < excess.tensors) {
    return true;
  }
  return excess.host && bytes_on_host(mix, saved) >= bytes_on_host(other, saved);
}

} // namespace

Solution fastest_mix(
    int64_t blocks, const BlockBytes& saved, const std::function<double(const std::vector<ActivationPolicy>&)>& seconds,
    const std::function<Excess(const std::vector<ActivationPolicy>&)>& excess) {
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
  std::vector<std::pair<PolicyCounts, Excess>> failed;
  for (const Mix& mix : mixes) {
    const bool hopeless = std::any_of(failed.begin(), failed.end(), [&](const auto& other) {
      return cannot_fit(mix.counts, other.first, other.second, saved);
    });
    if (hopeless) {
      continue;
    }
    std::vector<ActivationPolicy> policies = arrange(mix.counts);
    ++solution.checked;
    const Excess found = excess(policies);
    if (found.fits()) {
      solution.policies = std::move(policies);
      solution.seconds = mix.seconds;
      break;
    }
    failed.emplace_back(mix.counts, found);
  }
  return solution;
}

} // namespace distill::plan
