#include "trainer/plan/solver.h"

#include <gmock/gmock.h>

#include <random>

namespace distill::plan {
namespace {

using models::ActivationPolicy;
using Policies = std::vector<ActivationPolicy>;

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
        blocks, [&](const Policies& p) { return prices.time(p); },
        [&](const Policies& p) { return prices.memory(p) <= budget; });
    ASSERT_FALSE(solution.policies.empty());
    EXPECT_LE(prices.memory(solution.policies), budget);
    EXPECT_DOUBLE_EQ(solution.seconds, best_by_brute_force(blocks, prices, budget)) << "round " << round;
    EXPECT_EQ(solution.mixes, 56); // 5 blocks under 4 policies: (8 choose 3)
  }
}

TEST(FastestMix, IsEmptyWhereNothingFits) {
  const Solution solution = fastest_mix(
      3, [](const Policies&) { return 1.0; }, [](const Policies&) { return false; });
  EXPECT_TRUE(solution.policies.empty());
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
