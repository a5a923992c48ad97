#include "trainer/plan/solver.h"

#include <gmock/gmock.h>

#include <random>

namespace distill::plan {
namespace {

using models::ActivationPolicy;
using Policies = std::vector<ActivationPolicy>;

std::vector<int64_t> one_kind(int64_t blocks) {
  return std::vector<int64_t>(static_cast<size_t>(blocks), 0);
}

// Seconds and bytes that depend on the counts alone.
struct Prices {
  std::array<double, 4> seconds{};
  std::array<int64_t, 4> bytes{};

  double time(const Policies& policies) const {
    double sum = 0;
    for (const ActivationPolicy policy : policies) {
      sum += seconds[static_cast<size_t>(policy)];
    }
    return sum;
  }
  int64_t memory(const Policies& policies) const {
    int64_t sum = 0;
    for (const ActivationPolicy policy : policies) {
      sum += bytes[static_cast<size_t>(policy)];
    }
    return sum;
  }
};

// Mixes of policies alone: the optimizer's state is on the device.
Choices activations(std::vector<int64_t> kinds, std::vector<BlockBytes> saved) {
  return {.kinds = std::move(kinds), .saved = std::move(saved), .policies = {}, .placements = {Placement{}}};
}

// Every assignment of policies to blocks.
double best_by_brute_force(int64_t blocks, const Prices& prices, int64_t budget) {
  double best = std::numeric_limits<double>::infinity();
  for (int64_t code = 0; code < (int64_t{1} << (2 * blocks)); ++code) {
    Policies policies;
    for (int64_t i = 0; i < blocks; ++i) {
      policies.push_back(static_cast<ActivationPolicy>((code >> (2 * i)) & 3));
    }
    if (prices.memory(policies) <= budget) {
      best = std::min(best, prices.time(policies));
    }
  }
  return best;
}

TEST(FastestMix, IsWhatBruteForceFinds) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    // Kept is most and fastest; what is offloaded takes nothing.
    Prices prices;
    prices.bytes = {100, 1 + static_cast<int64_t>(random() % 40), 0, 0};
    prices.seconds = {0, 1.0 + random() % 5, 0.5 + random() % 7, 1.5 + random() % 7};
    const int64_t blocks = 5, budget = random() % 500;
    const Solution solution = fastest_mix(
        activations(one_kind(blocks), {{prices.bytes[0], prices.bytes[1]}}),
        [&](const Mix& mix) { return prices.time(mix.policies); },
        [&](const Mix& mix) {
          const int64_t tensors = prices.memory(mix.policies) - budget;
          return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
        });
    ASSERT_FALSE(solution.mix.policies.empty());
    EXPECT_LE(prices.memory(solution.mix.policies), budget);
    EXPECT_DOUBLE_EQ(solution.seconds, best_by_brute_force(blocks, prices, budget)) << "round " << round;
    EXPECT_EQ(solution.mixes, 56); // 5 blocks under 4 policies: (8 choose 3)
  }
}

// Blocks of two kinds, of which one saves ten times as much: the fastest of all counts, arranged in forward order.
TEST(FastestMix, CountsTheBytesOfEachKind) {
  const std::vector<int64_t> kinds{0, 1, 1, 0, 1};
  const std::vector<BlockBytes> saved{{1000, 20}, {100, 10}};
  const auto seconds = [](const Policies& policies) {
    double sum = 0;
    for (const ActivationPolicy policy : policies) {
      sum += policy == ActivationPolicy::kKeep ? 0 : policy == ActivationPolicy::kRecompute ? 1 : 10;
    }
    return sum;
  };
  const auto bytes = [&](const Policies& policies) {
    int64_t sum = 0;
    for (size_t i = 0; i < policies.size(); ++i) {
      const BlockBytes& own = saved[static_cast<size_t>(kinds[i])];
      sum += policies[i] == ActivationPolicy::kKeep     ? own.all
          : policies[i] == ActivationPolicy::kRecompute ? own.input
                                                        : 0;
    }
    return sum;
  };
  for (const int64_t budget : {0, 50, 150, 400, 1200, 1300, 2300}) {
    double best = std::numeric_limits<double>::infinity();
    for (int64_t keep = 0; keep <= 5; ++keep) {
      for (int64_t recompute = 0; keep + recompute <= 5; ++recompute) {
        for (int64_t offload = 0; keep + recompute + offload <= 5; ++offload) {
          const Policies policies = arrange({keep, recompute, offload, 5 - keep - recompute - offload});
          best = bytes(policies) <= budget ? std::min(best, seconds(policies)) : best;
        }
      }
    }
    const Solution solution = fastest_mix(
        activations(kinds, saved), [&](const Mix& mix) { return seconds(mix.policies); },
        [&](const Mix& mix) {
          const int64_t tensors = bytes(mix.policies) - budget;
          return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
        });
    EXPECT_EQ(solution.seconds, best) << budget;
  }
}

TEST(FastestMix, IsEmptyWhereNothingFits) {
  const Solution solution = fastest_mix(
      activations(one_kind(3), {{}}), [](const Mix&) { return 1.0; },
      [](const Mix&) { return LimitsExceeded{.device = true}; });
  EXPECT_TRUE(solution.mix.policies.empty());
}

TEST(FastestMix, ChecksFewMixesOfManyBlocks) {
  constexpr int64_t kAll = 1000, kInput = 90, kRest = 5000;
  const auto count = [](const Policies& p, ActivationPolicy policy) { return std::count(p.begin(), p.end(), policy); };
  const auto memory = [&](const Policies& p) {
    return kRest + kAll * count(p, ActivationPolicy::kKeep) + kInput * count(p, ActivationPolicy::kRecompute);
  };
  const Solution solution = fastest_mix(
      activations(one_kind(80), {{kAll, kInput}}),
      [&](const Mix& mix) {
        const Policies& p = mix.policies;
        return static_cast<double>(count(p, ActivationPolicy::kRecompute)) +
            0.7 * count(p, ActivationPolicy::kOffload) + 1.1 * count(p, ActivationPolicy::kOffloadInput);
      },
      [&](const Mix& mix) {
        const int64_t tensors = memory(mix.policies) - 40'500;
        return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
      });
  EXPECT_EQ(solution.mixes, 91'881);
  EXPECT_EQ(count(solution.mix.policies, ActivationPolicy::kKeep), 35);
  EXPECT_LE(solution.checked, 20);
}

TEST(FastestMix, AHostThatIsTooSmallRulesOutWhatOffloadsAsMuch) {
  const auto offloaded = [](const Policies& p) { return std::count(p.begin(), p.end(), ActivationPolicy::kOffload); };
  const Solution solution = fastest_mix(
      activations(one_kind(10), {{100, 10}}),
      [&](const Mix& mix) { return -static_cast<double>(offloaded(mix.policies)); },
      [&](const Mix& mix) { return LimitsExceeded{.host = offloaded(mix.policies) > 4}; });
  EXPECT_EQ(offloaded(solution.mix.policies), 4);
}

TEST(StatePlacements, MoveOneBlockAfterTheOtherToTheHostAndTheOuterOnesLast) {
  std::vector<std::string> texts;
  for (const auto& places : state_placements(5)) {
    texts.push_back(models::policies_text(places));
  }
  EXPECT_THAT(
      texts,
      testing::ElementsAre(
          "device", "device*3,host,device", "device*2,host*2,device", "device,host*3,device", "device,host*4", "host"));
  for (int64_t blocks = 1; blocks <= 40; ++blocks) {
    const auto placements = state_placements(blocks);
    ASSERT_EQ(placements.size(), static_cast<size_t>(blocks + 1));
    for (size_t i = 0; i < placements.size(); ++i) {
      EXPECT_EQ(std::count(placements[i].begin(), placements[i].end(), models::StatePlace::kHost), i) << blocks;
    }
  }
}

TEST(StatePlacements, TheCpuUpdatesSomeOfTheBlocksOnTheHostEvenlySpread) {
  const auto text = [](int64_t on_host, int64_t by_cpu) {
    return models::policies_text(state_placement(6, on_host, by_cpu));
  };
  EXPECT_EQ(text(4, 2), "device,host,cpu,host,cpu,device");
  EXPECT_EQ(text(4, 4), "device,cpu*4,device");
  EXPECT_EQ(text(6, 1), "host*5,cpu");
  for (int64_t on_host = 0; on_host <= 6; ++on_host) {
    for (int64_t by_cpu = 0; by_cpu <= on_host; ++by_cpu) {
      const auto places = state_placement(6, on_host, by_cpu);
      EXPECT_EQ(std::count(places.begin(), places.end(), models::StatePlace::kCpu), by_cpu);
      EXPECT_EQ(std::count_if(places.begin(), places.end(), models::is_on_host), on_host);
    }
  }
}

// Mixes of policies and places of the state, with prices of both.
class StateOnTheHost : public testing::Test {
 protected:
  static constexpr int64_t kBlocks = 6, kState = 70; // bytes of a block's state
  static constexpr int64_t kHidden = 3; // blocks whose copies cost nothing but a little of the bandwidth

  static Choices choices() {
    Choices choices = activations(one_kind(kBlocks), {{100, 10}});
    choices.placements.clear();
    for (auto& places : state_placements(kBlocks)) {
      const int64_t on_host = std::count(places.begin(), places.end(), models::StatePlace::kHost);
      choices.placements.push_back({std::move(places), kState * (kBlocks - on_host), kState * on_host});
    }
    return choices;
  }
  static double seconds(const Mix& mix) {
    const auto on_host = static_cast<int64_t>(mix.placement);
    return 10 + Prices{.seconds = {0, 1, 0.7, 1.1}}.time(mix.policies) + 0.01 * static_cast<double>(on_host) +
        0.9 * static_cast<double>(std::max<int64_t>(0, on_host - kHidden));
  }
  static int64_t bytes(const Mix& mix) {
    return Prices{.bytes = {100, 10, 0, 0}}.memory(mix.policies) +
        kState * (kBlocks - static_cast<int64_t>(mix.placement));
  }
  static Solution solve(const Choices& choices, int64_t budget) {
    return fastest_mix(choices, seconds, [&](const Mix& mix) {
      const int64_t tensors = bytes(mix) - budget;
      return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
    });
  }
};

TEST_F(StateOnTheHost, IsChosenTogetherWithThePoliciesAsBruteForceChooses) {
  const Choices all = choices();
  for (int64_t budget = 0; budget <= 1050; budget += 30) {
    double best = std::numeric_limits<double>::infinity();
    for (int64_t keep = 0; keep <= kBlocks; ++keep) {
      for (int64_t recompute = 0; keep + recompute <= kBlocks; ++recompute) {
        for (int64_t offload = 0; keep + recompute + offload <= kBlocks; ++offload) {
          for (size_t placement = 0; placement < all.placements.size(); ++placement) {
            const Mix mix{arrange({keep, recompute, offload, kBlocks - keep - recompute - offload}), placement};
            best = bytes(mix) <= budget ? std::min(best, seconds(mix)) : best;
          }
        }
      }
    }
    const Solution solution = solve(all, budget);
    ASSERT_FALSE(solution.mix.policies.empty()) << budget;
    EXPECT_LE(bytes(solution.mix), budget);
    EXPECT_DOUBLE_EQ(solution.seconds, best) << budget;
    EXPECT_EQ(solution.mixes, 84 * 7);
  }
}

TEST_F(StateOnTheHost, IsTheLeastThatFitsWithGivenPolicies) {
  Choices all = choices();
  all.policies = Policies(kBlocks, ActivationPolicy::kKeep);
  for (size_t on_host = 0; on_host <= kBlocks; ++on_host) {
    const int64_t needed = 6 * 100 + kState * (kBlocks - static_cast<int64_t>(on_host));
    for (const int64_t spare : {int64_t{0}, kState - 1}) {
      const Solution solution = solve(all, needed + spare);
      EXPECT_EQ(solution.mix.placement, on_host) << needed + spare;
      EXPECT_EQ(solution.mix.policies, all.policies);
      EXPECT_LE(solution.checked, 2) << "the bytes that are missing tell which placements cannot fit";
    }
  }
  EXPECT_TRUE(solve(all, 6 * 100 - 1).mix.policies.empty());
}

// The peak may be where the saved tensors are not alive: a mix that saves little fails there as one that saves much.
TEST_F(StateOnTheHost, IsWhatLowersAPeakThatSavedTensorsDoNotChange) {
  const Solution solution = fastest_mix(choices(), seconds, [&](const Mix& mix) {
    const int64_t tensors = kState * (kBlocks - static_cast<int64_t>(mix.placement)) - 3 * kState;
    return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
  });
  EXPECT_EQ(solution.mix.placement, 3U);
  EXPECT_EQ(models::policies_text(solution.mix.policies), "keep");
}

TEST_F(StateOnTheHost, TakesTheHostsMemoryIntoAccount) {
  const auto exceeded = [&](int64_t host) {
    return fastest_mix(choices(), seconds, [&](const Mix& mix) {
      const int64_t tensors = bytes(mix) - 500;
      const int64_t on_host =
          kState * static_cast<int64_t>(mix.placement) + 600 - Prices{.bytes = {100, 100, 0, 90}}.memory(mix.policies);
      return LimitsExceeded{.tensors = tensors, .device = tensors > 0, .host = on_host > host};
    });
  };
  EXPECT_GT(exceeded(1000).mix.placement, 0U);
  EXPECT_EQ(exceeded(60).mix.placement, 0U) << "there is no room for a block's state";
}

TEST(Arrange, SpreadsOffloadedBlocksAndKeepsTheLastOnes) {
  EXPECT_EQ(models::policies_text(arrange({4, 0, 0, 0})), "keep");
  EXPECT_EQ(models::policies_text(arrange({2, 1, 0, 1})), "offload_input,recompute,keep*2");
  EXPECT_EQ(models::policies_text(arrange({4, 0, 2, 0})), "offload,keep*2,offload,keep*2");
  for (int64_t offload = 0; offload <= 12; ++offload) {
    const Policies policies = arrange({5, 3, offload, 2});
    EXPECT_EQ(std::count(policies.begin(), policies.end(), ActivationPolicy::kOffload), offload);
    EXPECT_EQ(std::count(policies.begin(), policies.end(), ActivationPolicy::kKeep), 5);
    EXPECT_EQ(static_cast<int64_t>(policies.size()), 10 + offload);
  }
}

} // namespace
} // namespace distill::plan
