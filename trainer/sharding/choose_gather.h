#pragma once

#include <absl/status/status.h>

#include <vector>

#include "trainer/sharding/mesh.h"

namespace distill::sharding {

// Sets mesh.peers and mesh.gather_note; all ranks call it together and decide alike. `shard_axis`: this rank's, global
// ranks. FailedPrecondition, with the reason, where `gather` is kCopy and the ranks of some shard axis cannot map each
// other's memory.
absl::Status choose_gather(Mesh& mesh, GatherWay gather, const std::vector<int64_t>& shard_axis, at::Device device);

} // namespace distill::sharding
