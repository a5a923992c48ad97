#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

// A model of an allocator: the bytes that it would take for each request, without any memory.
namespace distill::device {

// Stands for one allocated block.
using BlockId = int64_t;

class AllocatorModel {
 public:
  virtual ~AllocatorModel() = default;
  virtual BlockId allocate(int64_t bytes) = 0;
  virtual void release(BlockId block) = 0;
  // Bytes that the block is counted as.
  virtual int64_t size(BlockId block) const = 0;
  // Bytes taken from the device.
  virtual int64_t reserved() const = 0;
};

// libtorch's CPU allocator: as many bytes as were asked for.
std::unique_ptr<AllocatorModel> exact_allocator();

// libtorch's CUDA caching allocator on one stream, with its default settings: requests are rounded up to 512 bytes and
// cut, best fit, from segments of 2 MiB (requests up to 1 MiB), 20 MiB (below 10 MiB) or a multiple of 2 MiB; a
// remainder that is large enough is split off, and free neighbours are merged again
// (c10/cuda/CUDACachingAllocator.cpp).
std::unique_ptr<AllocatorModel> caching_allocator();

} // namespace distill::device
