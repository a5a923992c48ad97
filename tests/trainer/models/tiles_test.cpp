#include "trainer/models/tiles.h"

#include <gtest/gtest.h>

namespace distill::models {
namespace {

TEST(Tiles, CoverAllTokensOnceAndAreAboutEquallyLarge) {
  for (const int64_t tokens : {1, 5, 128, 1000, 4096, 16385, 131072}) {
    for (const int64_t size : {0, 1, 5, 100, 128, 4096, 1 << 20}) {
      const std::vector<Tile> tiles = tiles_of(tokens, size);
      int64_t next = 0;
      for (const Tile& tile : tiles) {
        EXPECT_EQ(tile.first, next);
        EXPECT_GT(tile.tokens, 0);
        EXPECT_LE(tile.tokens, tiles.front().tokens);
        next += tile.tokens;
      }
      EXPECT_EQ(next, tokens);
      EXPECT_EQ(static_cast<int64_t>(tiles.size()), tile_count(tokens, size)) << tokens << " by " << size;
      EXPECT_LE(tiles.front().tokens, size == 0 ? tokens : std::min(tokens, size));
    }
  }
  EXPECT_GE(tiles_of(16385, 16384).back().tokens, 8192 - 128);
}

} // namespace
} // namespace distill::models
