#pragma once

#include <cstdint>
#include <vector>

#include "data/batch.h"

// What is to the left of a stretch. With whole documents nothing is: 0. Of concatenated documents it is a hash of the
// places of all tokens that come before in the sequence. Two rows of the same tokens are one row where it is equal.
namespace distill::teacher_cache {

inline constexpr uint64_t kSequenceStart = 1; // of the first stretch of a sequence of concatenated documents

// Of the stretch that follows this one in its sequence.
uint64_t context_after(uint64_t context, const data::Stretch& stretch);

// Of each of a batch's stretches.
std::vector<uint64_t> contexts_of(const data::Batch& batch);

} // namespace distill::teacher_cache
