#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

// Memory of each rank of a group that all of the group's ranks have mapped. A unit whose shards lie there is gathered
// by plain copies, one from each rank, which take no multiprocessor from the computation that they overlap with.
namespace distill::sharding {

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // Allocates memory of all ranks of the group, which call it together, with the same number of bytes. Returns one
  // uint8 tensor [bytes] for each rank of the group, in the order of the ranks: a rank writes to its own, which is
  // zero, and only reads the others. The own one is counted in the current LabelScope's category until it is released.
  // The memory lives at least as long as any rank holds a tensor of it, even if the rank that it belongs to has ended.
  // Throws if it cannot be had.
  virtual std::vector<at::Tensor> allocate(int64_t bytes) = 0;
};

// Gives every rank of the group the texts of all of them, in the order of the ranks; all call it together.
using Exchange = std::function<std::vector<std::string>(const std::string& own)>;

// Makes host memory, for ranks on CPUs of one host. It has no name that could outlive the processes.
std::unique_ptr<PeerMemory> host_peer_memory(int64_t rank, Exchange exchange);

// Returns a text for the host that this process runs on: it is the same in all of its processes that may map each
// other's memory, and in no other host's.
std::string host_identity();

// Allocates a little, and checks that every rank reads what each of the others has written there. Throws like
// PeerMemory::allocate, and where a rank reads something else.
void probe(PeerMemory& memory, int64_t rank, at::Device device, const Exchange& exchange);

} // namespace distill::sharding
