#pragma once

#include <cstdint>
#include <memory>

#include "trainer/device/allocator_kind.h"

// A model of an allocator: the bytes that it would take for each request, without any memory.
namespace distill::device {

// Stands for one allocated block.
using BlockId = int64_t;

class AllocatorModel {
 public:
  virtual ~AllocatorModel() = default;
  virtual BlockId allocate(int64_t bytes) = 0;
  // Memory that is taken from the device past the allocator, and counted with what the allocator has taken.
  virtual BlockId allocate_directly(int64_t bytes) = 0;
  virtual void release(BlockId block) = 0;
  // Bytes that the block is counted as.
  virtual int64_t size(BlockId block) const = 0;
  // Bytes taken from the device. More than the capacity: the last request could not be met.
  virtual int64_t reserved() const = 0;
  // How often the device was full, so that all free memory went back to it. Each time the host waits for the device.
  virtual int64_t give_backs() const = 0;
};

// libtorch's CPU allocator: as many bytes as were asked for.
std::unique_ptr<AllocatorModel> exact_allocator();

// libtorch's CUDA caching allocator (c10/cuda/CUDACachingAllocator.cpp of libtorch 2.11) on one stream. Requests are
// rounded up to 512 bytes and cut, best fit, from a pool of free blocks: one pool for requests up to 1 MiB, one for the
// others. Free neighbours are merged again. Where no free block is large enough, the kinds differ:
//   kSegments    A segment of 2 MiB (requests up to 1 MiB), 20 MiB (below 10 MiB) or the next multiple of 2 MiB. In the
//                pool of large blocks, a remainder of at most 1 MiB stays with its block.
//   kExpandable  Each pool is one range of addresses. The lowest place with room is filled with pages of 2 MiB
//   (requests
//                up to 1 MiB) or 20 MiB, and a free block at its beginning is used with it. Every remainder is split
//                off. Of free blocks whose end can grow, the size that they can grow to counts for the best fit.
// If the device has no memory left, all that is free goes back to it - unsplit segments, or whole pages - before the
// request is tried once more. `capacity`: bytes that the allocator can take; 0: no limit. A request that cannot be met
// even then is met nonetheless, and reserved() is above the capacity.
std::unique_ptr<AllocatorModel> caching_allocator(AllocatorKind kind, int64_t capacity = 0);

} // namespace distill::device
