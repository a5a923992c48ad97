#pragma once

#include <cstdint>
#include <vector>

#include "losses/head/chunk_bytes.h"

// Shapes and chunks for the tests of the chunk sizes.
namespace distill::losses::testing {

inline constexpr int64_t kMiB = 1 << 20;

inline HeadShape llama(int64_t vocab = 128256) {
  return {.tokens = 16384, .vocab = vocab, .student_hidden = 4096, .teacher_hidden = 4096};
}

// `tokens` in chunks of `rows`, of which the last one may be smaller.
inline std::vector<int64_t> equal_chunks(int64_t rows, int64_t tokens) {
  std::vector<int64_t> chunks(tokens / rows, rows);
  if (tokens % rows > 0) {
    chunks.push_back(tokens % rows);
  }
  return chunks;
}

} // namespace distill::losses::testing
