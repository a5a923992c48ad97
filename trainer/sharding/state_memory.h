#pragma once

#include <algorithm>
#include <memory>
#include <thread>
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
  int64_t processes = 1; // ranks that share the host's cores

  models::StatePlace place(int64_t unit) const {
    return places.empty() ? models::StatePlace::kDevice : places[static_cast<size_t>(unit)];
  }
  // Threads of this rank for units that the CPU updates: its share of the cores, of which two are left to the threads
  // that queue work and read data.
  int64_t update_threads() const {
    constexpr int64_t kOthers = 2;
    const int64_t share = static_cast<int64_t>(std::thread::hardware_concurrency()) / processes;
    return std::max<int64_t>(1, share > 2 * kOthers ? share - kOthers : share);
  }
};

} // namespace distill::sharding
