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
        one_kind(blocks), {{prices.bytes[0], prices.bytes[1]}}, [&](const Policies& p) { return prices.time(p); },
        [&](const Policies& p) {
          const int64_t tensors = prices.memory(p) - budget;
          return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
        });
    ASSERT_FALSE(solution.policies.empty());
    EXPECT_LE(prices.memory(solution.policies), budget);
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
    const Solution solution = fastest_mix(kinds, saved, seconds, [&](const Policies& policies) {
      const int64_t tensors = bytes(policies) - budget;
      return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
    });
    EXPECT_EQ(solution.seconds, best) << budget;
  }
}

TEST(FastestMix, IsEmptyWhereNothingFits) {
  const Solution solution = fastest_mix(
      one_kind(3), {{}}, [](const Policies&) { return 1.0; },
      [](const Policies&) { return LimitsExceeded{.device = true}; });
  EXPECT_TRUE(solution.policies.empty());
}

TEST(FastestMix, ChecksFewMixesOfManyBlocks) {
  constexpr int64_t kAll = 1000, kInput = 90, kRest = 5000;
  const auto count = [](const Policies& p, ActivationPolicy policy) { return std::count(p.begin(), p.end(), policy); };
  const auto memory = [&](const Policies& p) {
    return kRest + kAll * count(p, ActivationPolicy::kKeep) + kInput * count(p, ActivationPolicy::kRecompute);
  };
  const Solution solution = fastest_mix(
      one_kind(80), {{kAll, kInput}},
      [&](const Policies& p) {
        return static_cast<double>(count(p, ActivationPolicy::kRecompute)) +
            0.7 * count(p, ActivationPolicy::kOffload) + 1.1 * count(p, ActivationPolicy::kOffloadInput);
      },
      [&](const Policies& p) {
        const int64_t tensors = memory(p) - 40'500;
        return LimitsExceeded{.tensors = tensors, .device = tensors > 0};
      });
  EXPECT_EQ(solution.mixes, 91'881);
  EXPECT_EQ(count(solution.policies, ActivationPolicy::kKeep), 35);
  EXPECT_LE(solution.checked, 20);
}

TEST(FastestMix, AHostThatIsTooSmallRulesOutWhatOffloadsAsMuch) {
  const auto offloaded = [](const Policies& p) { return std::count(p.begin(), p.end(), ActivationPolicy::kOffload); };
  const Solution solution = fastest_mix(
      one_kind(10), {{100, 10}}, [&](const Policies& p) { return -static_cast<double>(offloaded(p)); },
      [&](const Policies& p) { return LimitsExceeded{.host = offloaded(p) > 4}; });
  EXPECT_EQ(offloaded(solution.policies), 4);
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
