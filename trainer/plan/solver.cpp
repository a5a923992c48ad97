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

std::vector<models::StatePlace> state_placement(int64_t blocks, int64_t on_host, int64_t by_cpu) {
  using enum models::StatePlace;
  std::vector<models::StatePlace> places(static_cast<size_t>(blocks), kDevice);
  const int64_t end = std::min(blocks, std::max(blocks - 1, on_host + 1));
  for (int64_t i = 0; i < on_host; ++i) {
    const bool cpu = (i + 1) * by_cpu / on_host > i * by_cpu / on_host;
    places[static_cast<size_t>(end - on_host + i)] = cpu ? kCpu : kHost;
  }
  return places;
}

std::vector<std::vector<models::StatePlace>> state_placements(int64_t blocks) {
  std::vector<std::vector<models::StatePlace>> placements;
  for (int64_t on_host = 0; on_host <= blocks; ++on_host) {
    placements.push_back(state_placement(blocks, on_host));
  }
  return placements;
}

namespace {

using CountsByKind = std::vector<PolicyCounts>;

CountsByKind by_kind(const std::vector<ActivationPolicy>& policies, const Choices& choices) {
  CountsByKind counted(choices.saved.size());
  for (size_t block = 0; block < policies.size(); ++block) {
    PolicyCounts& own = counted[static_cast<size_t>(choices.kinds[block])];
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

// A mix of policies in numbers.
struct Counted {
  PolicyCounts counts; // of all blocks; nothing if the policies are given
  CountsByKind by_kind;
  int64_t on_device = 0, in_flight = 0, on_host = 0; // bytes of activations
  double least_seconds = 0; // with any placement that is still to come
};

// Tells whether `mix` cannot fit, given that `other` does not. `other_placement` has no more on the host.
bool cannot_fit(
    const Counted& mix, const Placement& placement, const Counted& other, const Placement& other_placement,
    const LimitsExceeded& exceeded) {
  const int64_t moved = other_placement.device_bytes - placement.device_bytes; // from the device to the host
  // A mix that saves more may have the same peak, where its tensors are not alive.
  const int64_t saved_less = std::max<int64_t>(0, other.on_device + other.in_flight - mix.on_device);
  return (exceeded.device && moved == 0 && keeps_as_much(mix.by_kind, other.by_kind)) ||
      (exceeded.tensors > 0 && saved_less + moved < exceeded.tensors) ||
      (exceeded.host && mix.on_host + placement.host_bytes >= other.on_host + other_placement.host_bytes);
}

// All policies that are given, or all counts of them that add up to the number of blocks.
std::vector<PolicyCounts> all_counts(const Choices& choices) {
  if (!choices.policies.empty()) {
    return {{}}; // their counts are those of the policies
  }
  const auto blocks = static_cast<int64_t>(choices.kinds.size());
  std::vector<PolicyCounts> all;
  for (int64_t keep = 0; keep <= blocks; ++keep) {
    for (int64_t recompute = 0; keep + recompute <= blocks; ++recompute) {
      for (int64_t offload = 0; keep + recompute + offload <= blocks; ++offload) {
        all.push_back({keep, recompute, offload, blocks - keep - recompute - offload});
      }
    }
  }
  return all;
}

struct Failure {
  size_t mix = 0; // number of the mix of policies
  size_t placement = 0;
  LimitsExceeded exceeded;
};

// The search over the mixes of policies, for one placement after the other.
class Search {
 public:
  explicit Search(const Choices& choices) : choices_(choices) {
    for (const PolicyCounts& counts : all_counts(choices)) {
      CountsByKind own = by_kind(policies(counts), choices);
      const int64_t on_device = bytes_on_device(own, choices.saved), in_flight = bytes_in_flight(own, choices.saved);
      const int64_t on_host = bytes_on_host(own, choices.saved);
      all_.push_back({counts, std::move(own), on_device, in_flight, on_host});
    }
  }

  Solution run(
      const std::function<double(const Mix&)>& seconds, const std::function<LimitsExceeded(const Mix&)>& exceeded) {
    Solution best;
    const PolicyCounts fastest{.keep = static_cast<int64_t>(choices_.kinds.size())};
    for (size_t placement = 0; placement < choices_.placements.size(); ++placement) {
      const bool found = !best.mix.policies.empty();
      if (found && seconds({policies(fastest), placement}) >= best.seconds) {
        break;
      }
      if (!found && all_.size() > 1 && !is_hopeless(kLeanest, placement)) { // tells at once where nothing can fit
        try_mix(kLeanest, placement, best, exceeded);
        if (failed_.back().exceeded.tensors <= 0) { // it fits, or fails for reasons that others need not have
          failed_.pop_back();
        }
      }
      for (const auto& [time, mix] : in_order_of_time(placement, found ? best.seconds : kNever, seconds)) {
        if (!is_hopeless(mix, placement) && try_mix(mix, placement, best, exceeded)) {
          best.mix = {policies(all_[mix].counts), placement};
          best.seconds = time;
          break;
        }
      }
    }
    best.mixes = static_cast<int64_t>(all_.size() * choices_.placements.size());
    return best;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr size_t kLeanest = 0; // number of the mix that saves least: all_counts() begins with offload_input

  std::vector<ActivationPolicy> policies(const PolicyCounts& counts) const {
    return choices_.policies.empty() ? arrange(counts) : choices_.policies;
  }
  bool is_hopeless(size_t mix, size_t placement) const {
    return std::any_of(failed_.begin(), failed_.end(), [&](const Failure& other) {
      return cannot_fit(
          all_[mix], choices_.placements[placement], all_[other.mix], choices_.placements[other.placement],
          other.exceeded);
    });
  }
  // Whether the mix fits. Notes what it exceeds.
  bool try_mix(
      size_t mix, size_t placement, Solution& solution, const std::function<LimitsExceeded(const Mix&)>& exceeded) {
    ++solution.checked;
    failed_.push_back({mix, placement, exceeded({policies(all_[mix].counts), placement})});
    return failed_.back().exceeded.fits();
  }
  // The mixes that may fit and take less than `most` seconds, by number; of equally fast ones, that which saves less is
  // first.
  std::vector<std::pair<double, size_t>> in_order_of_time(
      size_t placement, double most, const std::function<double(const Mix&)>& seconds) {
    std::vector<std::pair<double, size_t>> timed;
    for (size_t mix = 0; mix < all_.size(); ++mix) {
      // With less of the state on the host the mix took no more.
      if (all_[mix].least_seconds >= most || is_hopeless(mix, placement)) {
        continue;
      }
      all_[mix].least_seconds = seconds({policies(all_[mix].counts), placement});
      if (all_[mix].least_seconds < most) {
        timed.emplace_back(all_[mix].least_seconds, mix);
      }
    }
    std::sort(timed.begin(), timed.end()); // mixes that keep less have lower numbers
    return timed;
  }

  const Choices& choices_;
  std::vector<Counted> all_;
  std::vector<Failure> failed_;
};

} // namespace

Solution fastest_mix(
    const Choices& choices, const std::function<double(const Mix&)>& seconds,
    const std::function<LimitsExceeded(const Mix&)>& exceeded) {
  return Search(choices).run(seconds, exceeded);
}

} // namespace distill::plan
