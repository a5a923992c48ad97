#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "trainer/sharding/peer_memory.h"

// cuda_peer_memory_cuda.cpp, or cuda_peer_memory_no_cuda.cpp in a build without CUDA.
namespace distill::sharding {

// Makes device memory from libtorch's symmetric memory. `store`: of this group alone. `name` must differ between groups
// of the process. NVLink multicast is switched off in the environment of the process, since nothing here uses it.
std::unique_ptr<PeerMemory> cuda_peer_memory(
    const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int64_t rank, int64_t size,
    at::Device device);

// Explains why this rank's device cannot map the memory of the devices with these numbers, those of all ranks of the
// group on this host; empty: it can.
std::string peer_access_problem(at::Device device, const std::vector<int64_t>& devices);

} // namespace distill::sharding
