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

struct TimedMix {
  PolicyCounts counts; // of all blocks
  double seconds = 0;
};

using CountsByKind = std::vector<PolicyCounts>;

CountsByKind by_kind(const PolicyCounts& counts, const std::vector<int64_t>& kinds, size_t num_kinds) {
  if (num_kinds == 1) {
    return {counts};
  }
  CountsByKind counted(num_kinds);
  const std::vector<ActivationPolicy> policies = arrange(counts);
  for (size_t block = 0; block < policies.size(); ++block) {
    PolicyCounts& own = counted[static_cast<size_t>(kinds[block])];
    switch (policies[block]) {
      case ActivationPolicy::kKeep:
        ++own.keep;
        break;
      case ActivationPolicy::kRecompute:
        ++own.recompute;
        break;
      case ActivationPolicy::kOffload:
        ++own.offload;
        break;
      case ActivationPolicy::kOffloadInput:
        ++own.offload_input;
        break;
    }
  }
  return counted;
}

// Tells whether `mix` leaves at least as much on the device as `other`, of every kind. A block under keep leaves more
// than one under recompute, which leaves its input; an offloaded block leaves nothing.
bool keeps_as_much(const CountsByKind& mix, const CountsByKind& other) {
  for (size_t kind = 0; kind < mix.size(); ++kind) {
    const PolicyCounts &a = mix[kind], &b = other[kind];
    const bool copies_as_much = a.offload > 0 || b.offload == 0; // two may be on the device while copied
    if (!copies_as_much || a.keep < b.keep || a.keep + a.recompute < b.keep + b.recompute) {
      return false;
    }
  }
  return true;
}

// Bytes that the mix saves on the device, without those on their way to the host or back.
int64_t bytes_on_device(const CountsByKind& counts, const std::vector<BlockBytes>& saved) {
  int64_t bytes = 0;
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    bytes += counts[kind].keep * saved[kind].all + counts[kind].recompute * saved[kind].input;
  }
  return bytes;
}

// Returns the most bytes that are on their way to the host or back at one time: the tensors of two blocks.
int64_t bytes_in_flight(const CountsByKind& counts, const std::vector<BlockBytes>& saved) {
  int64_t most = 0; // of one block
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    const int64_t bytes = counts[kind].offload > 0 ? saved[kind].all
        : counts[kind].offload_input > 0           ? saved[kind].input
                                                   : 0;
    most = std::max(most, bytes);
  }
  return 2 * most;
}

int64_t bytes_on_host(const CountsByKind& counts, const std::vector<BlockBytes>& saved) {
  int64_t bytes = 0;
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    bytes += counts[kind].offload * saved[kind].all + counts[kind].offload_input * saved[kind].input;
  }
  return bytes;
}

// Tells whether `mix` cannot fit, given that `other` does not.
bool cannot_fit(
    const CountsByKind& mix, const CountsByKind& other, const LimitsExceeded& exceeded,
    const std::vector<BlockBytes>& saved) {
  if (exceeded.device && keeps_as_much(mix, other)) {
    return true;
  }
  const int64_t others = bytes_on_device(other, saved) + bytes_in_flight(other, saved);
  if (exceeded.tensors > 0 && others - bytes_on_device(mix, saved) < exceeded.tensors) {
    return true;
  }
  return exceeded.host && bytes_on_host(mix, saved) >= bytes_on_host(other, saved);
}

} // namespace

Solution fastest_mix(
    const std::vector<int64_t>& kinds, const std::vector<BlockBytes>& saved,
    const std::function<double(const std::vector<ActivationPolicy>&)>& seconds,
    const std::function<LimitsExceeded(const std::vector<ActivationPolicy>&)>& exceeded) {
  const auto blocks = static_cast<int64_t>(kinds.size());
  std::vector<TimedMix> mixes;
  for (int64_t keep = 0; keep <= blocks; ++keep) {
    for (int64_t recompute = 0; keep + recompute <= blocks; ++recompute) {
      for (int64_t offload = 0; keep + recompute + offload <= blocks; ++offload) {
        TimedMix mix{{keep, recompute, offload, blocks - keep - recompute - offload}};
        mix.seconds = seconds(arrange(mix.counts));
        mixes.push_back(mix);
      }
    }
  }
  std::stable_sort(mixes.begin(), mixes.end(), [](const TimedMix& a, const TimedMix& b) {
    return std::tie(a.seconds, a.counts.keep, a.counts.recompute) <
        std::tie(b.seconds, b.counts.keep, b.counts.recompute);
  });
  Solution solution;
  solution.mixes = static_cast<int64_t>(mixes.size());
  std::vector<std::pair<CountsByKind, LimitsExceeded>> failed;
  for (const TimedMix& mix : mixes) {
    CountsByKind counts = by_kind(mix.counts, kinds, saved.size());
    const bool hopeless = std::any_of(failed.begin(), failed.end(), [&](const auto& other) {
      return cannot_fit(counts, other.first, other.second, saved);
    });
    if (hopeless) {
      continue;
    }
    std::vector<ActivationPolicy> policies = arrange(mix.counts);
    ++solution.checked;
    const LimitsExceeded found = exceeded(policies);
    if (found.fits()) {
      solution.policies = std::move(policies);
      solution.seconds = mix.seconds;
      break;
    }
    failed.emplace_back(std::move(counts), found);
  }
  return solution;
}

} // namespace distill::plan
