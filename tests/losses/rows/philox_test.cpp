// The random numbers of sampled teachers.
#include "losses/rows/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace distill::losses {
namespace {

std::vector<uint32_t> words(const PhiloxBlock& block) {
  return {block.words, block.words + 4};
}

// The known answers of Random123, the authors' own library.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(
      words(philox({{0, 0, 0, 0}}, 0, 0)), (std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(
      words(philox({{ones, ones, ones, ones}}, ones, ones)),
      (std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0)),
      (std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformNumbersAreOfSeedKeyAndDrawAlone) {
  double sum = 0;
  double square = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = philox_uniform(7, 1ULL << 40U, static_cast<uint32_t>(i));
    EXPECT_GE(u, 0);
    EXPECT_LT(u, 1);
    sum += u;
    square += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.01);
  EXPECT_NEAR(square / kDraws, 1.0 / 3, 0.01);
  EXPECT_EQ(philox_uniform(7, 8, 9), philox_uniform(7, 8, 9));
  EXPECT_NE(philox_uniform(7, 8, 9), philox_uniform(7, 8, 8));
  EXPECT_NE(philox_uniform(7, 8, 9), philox_uniform(7, 8 + (1ULL << 32U), 9));
  EXPECT_NE(philox_uniform(7, 8, 9), philox_uniform(7 + (1ULL << 32U), 8, 9));
}

} // namespace
} // namespace distill::losses
