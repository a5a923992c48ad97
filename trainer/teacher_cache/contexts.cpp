#include "trainer/teacher_cache/contexts.h"

#include <algorithm>
#include <cstring>

#include "data/base/checksum.h"
#include "data/shard.h"

namespace distill::teacher_cache {

uint64_t context_after(uint64_t context, const data::Stretch& stretch) {
  struct Place {
    uint64_t context;
    uint8_t shard[32];
    int64_t document, begin, tokens;
  } place{};
  static_assert(sizeof(place) == 64);
  place.context = context;
  std::memcpy(place.shard, stretch.shard->header().header_hash, sizeof(place.shard));
  place.document = stretch.document;
  place.begin = stretch.begin;
  place.tokens = stretch.tokens;
  return std::max(base::checksum(&place, sizeof(place)), kSequenceStart + 1);
}

std::vector<uint64_t> contexts_of(const data::Batch& batch) {
  std::vector<uint64_t> contexts(batch.stretches.size(), 0);
  const int64_t seq_len = batch.tokens_BS.size(1);
  for (size_t i = 0; !batch.packed && i < contexts.size(); ++i) {
    contexts[i] =
        batch.stretches[i].at % seq_len == 0 ? kSequenceStart : context_after(contexts[i - 1], batch.stretches[i - 1]);
  }
  return contexts;
}

} // namespace distill::teacher_cache
