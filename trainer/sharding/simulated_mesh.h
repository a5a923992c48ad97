#pragma once

#include <memory>

#include "trainer/sharding/mesh.h"

namespace distill::sharding {

// Makes the mesh of rank 0 of shard x replicate ranks that do not exist, for a simulated run: collectives only make the
// allocations that they would make on the target device. `shared_memory`: the ranks of the shard axis map each other's
// memory.
std::unique_ptr<Mesh> simulated_mesh(int64_t shard, int64_t replicate, bool shared_memory);

} // namespace distill::sharding
