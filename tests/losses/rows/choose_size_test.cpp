// How many blocks share a row: against the best of all sizes by hand, and without cliffs between neighbours.
#include "losses/rows/cuda/cluster/choose_size.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "losses/rows/cuda/launch_limits.h"

namespace distill::losses {
namespace {

using cluster::Mode;

// What an H200 says of the kernel with a teacher: 132 multiprocessors in groups of different sizes.
constexpr ClustersAtOnce kH200{0, 0, 66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7, 7, 7, 7};

constexpr Mode kModes[] = {Mode::kUnit, Mode::kUnitLoss, Mode::kCappedLoss}; // whose times differ

int best_size(int64_t vocab, Mode mode = Mode::kUnit, const ClustersAtOnce& at_once = kH200) {
  return best_cluster_size(vocab, at_once, row_times(/*teacher=*/true, mode), kLongTiles);
}

double cost(int64_t vocab, int size, Mode mode) {
  return row_time(vocab, size, row_times(/*teacher=*/true, mode)) / kH200[static_cast<size_t>(size)];
}

TEST(ClusterSize, SlicesCoverTheRowAndBeginAtMultiplesOfSixteenBytes) {
  for (const int64_t vocab : {1, 7, 32000, 50257, 128256, 262208, 425984}) {
    for (int size = 2; size <= kMaxCluster; ++size) {
      const ClusterPlan plan = cluster_plan(vocab, size);
      EXPECT_EQ(plan.slice % 8, 0);
      EXPECT_GE(static_cast<int64_t>(plan.slice) * size, vocab);
      EXPECT_LT(static_cast<int64_t>(plan.slice - 8) * size, vocab);
      EXPECT_GE(plan.tiles * kClusterThreads * kClusterVector, plan.slice);
      EXPECT_GE(plan.tiles, kMinTiles);
    }
  }
}

TEST(ClusterSize, IsTheFastestThatHoldsTheRow) {
  for (const Mode mode : kModes) {
    for (int64_t vocab = 1000; vocab <= 425984; vocab += 997) {
      const int size = best_size(vocab, mode);
      ASSERT_GT(size, 0) << vocab;
      EXPECT_LE(cluster_plan(vocab, size).tiles, kLongTiles);
      for (int other = 2; other <= kMaxCluster; ++other) {
        if (cluster_plan(vocab, other).tiles <= kLongTiles) {
          EXPECT_LE(cost(vocab, size, mode), cost(vocab, other, mode)) << vocab << " size " << other;
        }
      }
    }
  }
}

TEST(ClusterSize, WiderRowsCostNoLessAndNeighboursAboutTheSame) {
  for (const Mode mode : kModes) {
    double before = 0;
    for (int64_t vocab = 30000; vocab <= 425984; vocab += 64) {
      const double now = cost(vocab, best_size(vocab, mode), mode);
      EXPECT_GE(now, before) << vocab;
      if (before > 0) {
        EXPECT_LT(now, 1.5 * before) << vocab; // the largest step: where slices of 10 tiles become longer
      }
      before = now;
    }
  }
}

// Each takes minutes to compile in all modes: one that no vocabulary takes would be for nothing.
TEST(ClusterSize, EveryNumberOfTilesIsThatOfSomeVocabulary) {
  for (const Mode mode : kModes) {
    std::set<int> chosen;
    for (int64_t vocab = 1000; vocab <= 425984; vocab += 64) {
      chosen.insert(cluster_plan(vocab, best_size(vocab, mode)).tiles);
    }
    std::set<int> compiled{kLongTiles};
    for (int tiles = kMinTiles; tiles <= kMaxTiles; ++tiles) {
      compiled.insert(tiles);
    }
    EXPECT_EQ(chosen, compiled) << static_cast<int>(mode);
  }
}

// What was the fastest on an H200 at the vocabularies of models, or within 3 % of it.
TEST(ClusterSize, IsTheMeasuredOneAtModelsVocabularies) {
  for (const Mode mode : kModes) {
    for (const auto& [vocab, size] :
         {std::pair{32000, 2}, std::pair{128256, 8}, std::pair{151936, 8}, std::pair{256000, 16}, std::pair{262144, 16},
          std::pair{262208, 16}, std::pair{320000, 16}}) {
      EXPECT_EQ(best_size(vocab, mode), size) << vocab;
    }
  }
  for (const int vocab : {200064, 201088}) { // 13 tiles for 8 blocks, 7 for the others
    EXPECT_EQ(best_size(vocab, Mode::kUnit), 8);
    EXPECT_EQ(best_size(vocab, Mode::kUnitLoss), 15);
    EXPECT_EQ(best_size(vocab, Mode::kCappedLoss), 16);
  }
  EXPECT_EQ(best_size(300032, Mode::kUnit), 16); // 10 tiles for both 15 and 16 blocks
  EXPECT_EQ(best_size(300032, Mode::kUnitLoss), 15);
  EXPECT_EQ(best_size(300032, Mode::kCappedLoss), 16);
}

// With labels alone two blocks share a multiprocessor.
TEST(ClusterSize, IsTheMeasuredOneWithLabelsAlone) {
  constexpr ClustersAtOnce kLabelsAlone{0, 0, 132, 79, 62, 47, 39, 32, 30, 23, 21, 16, 16, 14, 14, 14, 14};
  for (const auto& [vocab, size] :
       {std::pair{32000, 2}, std::pair{128256, 8}, std::pair{151936, 8}, std::pair{200064, 8}, std::pair{201088, 8},
        std::pair{256000, 16}, std::pair{262144, 16}, std::pair{262208, 16}, std::pair{300032, 16},
        std::pair{320000, 16}}) {
    const RowTimes times = row_times(/*teacher=*/false, Mode::kUnit);
    EXPECT_EQ(best_cluster_size(vocab, kLabelsAlone, times, kLongTiles), size) << vocab;
  }
}

TEST(LaunchLimits, AreOnRowsAndColumns) {
  EXPECT_EQ(beyond_limits(INT32_MAX, int64_t{1} << 30), nullptr);
  EXPECT_NE(beyond_limits(int64_t{1} << 31, 1), nullptr);
  EXPECT_NE(beyond_limits(1, (int64_t{1} << 30) + 1), nullptr);
}

TEST(ClusterSize, ARowThatNoClusterHoldsHasNone) {
  EXPECT_EQ(best_size(425985 + 128), 0);
  EXPECT_EQ(best_cluster_size(327681 + 128, kH200, row_times(/*teacher=*/true, Mode::kGeneral), kMaxTiles), 0);
  ClustersAtOnce only_two{};
  only_two[2] = 60;
  EXPECT_EQ(best_size(53248, Mode::kUnit, only_two), 2);
  EXPECT_EQ(best_size(53265, Mode::kUnit, only_two), 0);
}

} // namespace
} // namespace distill::losses
