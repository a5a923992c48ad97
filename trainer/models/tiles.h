#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// The tokens of a micro-batch in tiles, for what is computed for each token alone: its widest tensors then exist for
// one tile at a time.
namespace distill::models {

// Tokens that follow one another.
struct Tile {
  int64_t first = 0;
  int64_t tokens = 0;
};

// The number of tiles of `tokens` tokens, each of at most `tile_tokens`; 0: one tile of all.
inline int64_t tile_count(int64_t tokens, int64_t tile_tokens) {
  return tile_tokens > 0 && tokens > tile_tokens ? (tokens + tile_tokens - 1) / tile_tokens : 1;
}

// The tiles, about equally large: a small one at the end would cost as many reads of the weights and of their gradients
// as a large one. All but the last have a multiple of 128 tokens, or `tile_tokens`.
inline std::vector<Tile> tiles_of(int64_t tokens, int64_t tile_tokens) {
  constexpr int64_t kMultiple = 128;
  const int64_t count = tile_count(tokens, tile_tokens);
  const int64_t equal = (tokens + count - 1) / count;
  const int64_t size = count == 1 ? tokens : std::min(tile_tokens, (equal + kMultiple - 1) / kMultiple * kMultiple);
  std::vector<Tile> tiles;
  for (int64_t first = 0; first < tokens; first += size) {
    tiles.push_back({first, std::min(size, tokens - first)});
  }
  return tiles;
}

} // namespace distill::models
