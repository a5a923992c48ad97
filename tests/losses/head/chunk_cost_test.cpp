#include "losses/head/chunk_cost.h"

#include <gtest/gtest.h>

#include "tests/losses/head/chunk_shapes.h"

namespace distill::losses::testing {
namespace {

TEST(ChunkCost, ASmallRestAtTheEndCosts) {
  HeadShape shape = llama();
  shape.tokens = 4096;
  const auto cost = [&](int64_t rows, int64_t tokens) { return relative_cost(shape, equal_chunks(rows, tokens)); };
  EXPECT_LT(cost(256, 1024), cost(256, 1280)); // four times 1024, or a rest of 256
  EXPECT_LT(cost(320, 960), cost(320, 768)); // a rest of 128 in each of the chunks
}

TEST(ChunkCost, TheLastGroupHasTheFirstChunks) {
  HeadShape shape = llama();
  const std::vector<int64_t> chunks{640, 384, 256};
  const auto cost_of = [&](int64_t tokens, const std::vector<int64_t>& of) {
    shape.tokens = tokens;
    return static_cast<double>(tokens) * relative_cost(shape, of);
  };
  const double whole = cost_of(1280, chunks);
  EXPECT_DOUBLE_EQ(cost_of(2 * 1280 + 800, chunks), 2 * whole + cost_of(800, {640, 160}));
  EXPECT_DOUBLE_EQ(cost_of(3 * 1280, chunks), 3 * whole);
  EXPECT_DOUBLE_EQ(cost_of(100, chunks), cost_of(100, {100}));
}

TEST(ChunkCost, WithoutGradientsOnlyTheLogitsCount) {
  HeadShape shape = llama();
  shape.needs_grad = false;
  shape.tokens = 1024;
  EXPECT_DOUBLE_EQ(relative_cost(shape, equal_chunks(512, 1024)), relative_cost(shape, equal_chunks(512, 512)));
}

} // namespace
} // namespace distill::losses::testing
