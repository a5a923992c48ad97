#pragma once

#include <cstdint>
#include <vector>

#include "losses/head/chunk_bytes.h"

// The search finds the chunks of tokens that are fastest by measured times under a limit of memory (chunk_policy.h).
namespace distill::losses {

inline constexpr int64_t kMaxAutomaticRows = 4096; // the products gain nothing beyond

// Returns the group of chunks with the smallest relative_cost whose scratch fits into cap_bytes; of several that are
// equally fast, the one with the fewest bytes. Chunks never increase, and only the last is below min_chunk_size if the
// cap allows that. One token must fit.
std::vector<int64_t> fastest_chunks(const HeadShape& shape, int64_t min_chunk_size, int64_t cap_bytes);

// Returns the largest number of chunks of `rows` tokens, at most `limit`, whose scratch fits; one of them must fit.
std::vector<int64_t> most_equal_chunks(const HeadShape& shape, int64_t rows, int64_t limit, int64_t cap_bytes);

} // namespace distill::losses
