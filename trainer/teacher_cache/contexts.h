#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"

// The context of a stretch, which is a number for the tokens to its left. With whole documents there are none, and the
// context is 0. In a stream of concatenated documents it is a hash of the places of all tokens that come before in the
// sequence. Two rows of the same tokens are one row if their contexts are equal.
namespace distill::teacher_cache {

inline constexpr uint64_t kSequenceStart = 1; // of the first stretch of a sequence of concatenated documents

// Returns the context of the stretch that follows this one in its sequence.
uint64_t context_after(uint64_t context, const data::Stretch& stretch);

// Returns the context of each of a batch's stretches.
std::vector<uint64_t> contexts_of(const data::Batch& batch);

} // namespace distill::teacher_cache
