#pragma once

#include <cstdint>

namespace distill::sharding {

// A rank's slice of a unit's flat buffer. The buffer's end is padded so that all slices have the same size.
struct ShardRange {
  int64_t begin = 0; // elements
  int64_t numel = 0; // of every rank's slice
  int64_t padded_numel = 0; // of the whole buffer

  int64_t end() const {
    return begin + numel;
  }
};

// `alignment` makes every slice's start aligned for vector loads and collectives.
inline ShardRange shard_range(int64_t unit_numel, int64_t rank, int64_t world_size, int64_t alignment = 64) {
  const int64_t quantum = world_size * alignment;
  const int64_t padded = (unit_numel + quantum - 1) / quantum * quantum;
  return {rank * (padded / world_size), padded / world_size, padded};
}

} // namespace distill::sharding
