// Runs a CUDA kernel on a CPU, one thread of it at a time, so that the kernel's logic can be tested without a GPU:
// masks, phases, slots, barriers. A thread runs until it waits for others. What it cannot show: races, and how fast it
// is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace emulation {

constexpr unsigned kAllLanes = 0xffffffffU;
constexpr int kSharedBytes = 227 * 1024; // of a block

struct Here {
  unsigned thread;
  unsigned block_of_grid;
  unsigned threads; // of a block
  unsigned blocks_of_grid;
  unsigned char* shared; // the block's memory, kSharedBytes
};

// Of the kernel's thread that runs.
const Here& here();
int lane();

// Runs `kernel` with `blocks` blocks of `threads` threads in clusters of `cluster_size`, one cluster after the other.
// Throws std::runtime_error where all threads of a cluster wait, or where an instruction was used wrongly.
void run_grid(int blocks, int threads, int cluster_size, const std::function<void()>& kernel);

void sync_block();
void sync_cluster();
// All lanes of `mask`: the whole warp, or its lower or upper half.
void sync_lanes(unsigned mask);

// The 8 bytes that the lanes of `mask` have put up for each other between two sync_lanes().
uint64_t* lane_values(unsigned mask);

template <typename T>
T from_lane(unsigned mask, T value, int lane_of_value) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t* values = lane_values(mask);
  std::memcpy(values + lane(), &value, sizeof(value));
  sync_lanes(mask);
  T theirs;
  std::memcpy(&theirs, values + lane_of_value, sizeof(theirs));
  sync_lanes(mask);
  return theirs;
}

template <typename T, typename Merge>
T over_lanes(unsigned mask, T value, const Merge& merge) {
  uint64_t* values = lane_values(mask);
  std::memcpy(values + lane(), &value, sizeof(value));
  sync_lanes(mask);
  for (int other = 0; other < 32; ++other) {
    if ((mask >> static_cast<unsigned>(other) & 1U) != 0) {
      T theirs;
      std::memcpy(&theirs, values + other, sizeof(theirs));
      value = merge(value, theirs);
    }
  }
  sync_lanes(mask);
  return value;
}

// Addresses of shared memory: the block's rank in its cluster, and bytes from the beginning of its memory.
uint32_t address_of(const void* shared);
uint32_t address_in_block(uint32_t address, int rank);
void* at(uint32_t address);

// Copies into shared memory that a thread begins (PTX: cp.async), in groups. Nothing arrives before the thread waits
// for it; until then the bytes are such that numbers of them are NaN.
void copy_later(uint32_t shared, const void* global, size_t bytes);
void commit_copies();
void wait_for_copies(size_t groups_left);

// Barriers in shared memory (PTX: mbarrier), by address.
void barrier_init(uint32_t barrier, unsigned arrivals);
void barrier_arrive(uint32_t barrier, uint32_t expected_bytes);
void barrier_complete(uint32_t barrier, uint32_t bytes);
void barrier_wait(uint32_t barrier, uint32_t phase);

void expect_aligned(const void* pointer, size_t bytes);

} // namespace emulation
