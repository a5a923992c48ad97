#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "trainer/device/host_slab.h"
#include "trainer/models/layout.h"
#include "trainer/models/state_place.h"

namespace distill::sharding {

// Where the optimizer's state of a model's units is stored.
struct StateMemory {
  // The elements of the pieces in which state passes through the device, given those of the largest shard on the host:
  // tensors of 32 MiB are enough for full copy bandwidth, and pieces of small shards must take little of what the
  // shards leave free.
  static constexpr int64_t kPiece = int64_t{1} << 23;
  static int64_t piece_numel(int64_t largest_shard) {
    constexpr int64_t kPiecesOfShard = 16, kUnits = kPiecesOfShard * models::kParamAlignment;
    return std::min(kPiece, (largest_shard + kUnits - 1) / kUnits * models::kParamAlignment);
  }
  // Pieces that are on the device at a time, at least: one arrives, one is updated, one leaves, and one waits.
  static constexpr int64_t kLeastStages = 4;

  std::vector<models::StatePlace> places; // of each unit; empty: all are on the device
  std::shared_ptr<device::HostSlab> host; // holds what is on the host; null: nothing is
  int64_t stages = kLeastStages; // more of them arrive during the backward pass, before the update begins

  bool on_host(int64_t unit) const {
    return !places.empty() && places[static_cast<size_t>(unit)] == models::StatePlace::kHost;
  }
};

} // namespace distill::sharding
