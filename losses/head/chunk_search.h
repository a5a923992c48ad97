#pragma once

#include <cstdint>
#include <vector>

#include "losses/head/chunk_bytes.h"

// The chunks of tokens that measured times make the fastest under a limit of memory (losses/head/chunk_policy.h).
namespace distill::losses {

inline constexpr int64_t kMaxAutomaticRows = 4096; // the products gain nothing beyond

// Of the groups of chunks whose scratch fits into cap_bytes, one with the smallest relative_cost; of several that are
// as fast, that with the fewest bytes. The chunks never increase, and none but the last is below min_chunk_size if the
// cap allows that. One token must fit.
std::vector<int64_t> fastest_chunks(const HeadShape& shape, int64_t min_chunk_size, int64_t cap_bytes);

// The largest number of chunks of `rows` tokens, at most `limit`, whose scratch fits; one of them must fit.
std::vector<int64_t> most_equal_chunks(const HeadShape& shape, int64_t rows, int64_t limit, int64_t cap_bytes);

} // namespace distill::losses
