#include "tests/losses/emulation/grid.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <csetjmp>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace emulation {

namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr unsigned kRankShift = 20; // of an address; kSharedBytes are below it

// Everybody waits until the last one of `count` arrives.
struct Rendezvous {
  int arrived = 0;
  uint64_t generation = 0;
};

// A barrier in shared memory.
struct Mbarrier {
  unsigned arrivals = 0;
  unsigned pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;

  void check() {
    if (pending == 0 && bytes == 0) {
      phase ^= 1U;
      pending = arrivals;
    }
  }
};

struct Lanes {
  Rendezvous rendezvous;
  uint64_t values[32];
};

struct Block {
  std::vector<unsigned char> memory; // kSharedBytes from an address that is a multiple of 128 on
  unsigned char* shared = nullptr;
  Rendezvous rendezvous;
  std::vector<Lanes> lanes; // three for each warp: all lanes, the lower half, the upper half
  std::unordered_map<uint32_t, Mbarrier> barriers; // by address within the block
};

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Fiber {
  ucontext_t begin; // where it starts
  jmp_buf place; // where it goes on; swapcontext() would make a system call each time
  bool started = false;
  Here here;
  Block* block = nullptr;
  std::vector<Copy> copies; // of the group that has not ended
  std::deque<std::vector<Copy>> groups; // that have ended, and are not complete
  bool done = false;
};

struct Cluster {
  std::vector<Block> blocks;
  Rendezvous rendezvous;
  std::vector<Fiber> fibers;
  const std::function<void()>* kernel = nullptr;
  jmp_buf scheduler;
  Fiber* current = nullptr;
  uint64_t progress = 0; // grows whenever something happens that a thread may wait for
  std::string problem;
};

Cluster* running = nullptr;

Fiber& me() {
  return *running->current;
}

void yield() {
  if (_setjmp(me().place) == 0) {
    _longjmp(running->scheduler, 1);
  }
}

// Runs the cluster's current fiber until it yields. A function of its own, since no local variable is safe here.
[[gnu::noinline]] void run_current() {
  if (_setjmp(running->scheduler) != 0) {
    return;
  }
  if (me().started) {
    _longjmp(me().place, 1);
  }
  me().started = true;
  setcontext(&me().begin);
}

template <typename Condition>
void wait_until(const Condition& condition) {
  while (!condition()) {
    yield();
  }
}

void meet(Rendezvous& at, int count) {
  const uint64_t generation = at.generation;
  ++running->progress;
  if (++at.arrived == count) {
    at.arrived = 0;
    ++at.generation;
  } else {
    wait_until([&] { return at.generation != generation; });
  }
}

Mbarrier& barrier_at(uint32_t address) {
  Block& block = running->blocks.at(address >> kRankShift);
  const auto found = block.barriers.find(address & ((1U << kRankShift) - 1));
  if (found == block.barriers.end()) {
    throw std::runtime_error("a barrier is used before it is initialised");
  }
  return found->second;
}

void thread_main() {
  try {
    (*running->kernel)();
  } catch (const std::exception& error) {
    running->problem = error.what();
  }
  me().done = true;
  ++running->progress;
  yield();
}

int part_of(unsigned mask) {
  switch (mask) {
    case kAllLanes:
      return 0;
    case 0x0000ffffU:
      return 1;
    case 0xffff0000U:
      return 2;
    default:
      throw std::runtime_error("lanes other than a warp or a half of it");
  }
}

Lanes& lanes_of(unsigned mask) {
  return me().block->lanes.at(me().here.thread / 32 * 3 + static_cast<unsigned>(part_of(mask)));
}

void run_cluster(Cluster& cluster) {
  running = &cluster;
  const size_t count = cluster.fibers.size();
  size_t left = count;
  for (size_t round = 0; left > 0 && cluster.problem.empty(); ++round) {
    const uint64_t before = cluster.progress;
    left = 0;
    for (size_t k = 0; k < count; ++k) {
      Fiber& fiber = cluster.fibers[round % 2 == 0 ? k : count - 1 - k]; // no order that the kernel could rely on
      if (!fiber.done) {
        cluster.current = &fiber;
        run_current();
        left += fiber.done ? 0U : 1U;
      }
    }
    if (left > 0 && cluster.progress == before) {
      cluster.problem = std::to_string(left) + " threads wait for each other";
    }
  }
  running = nullptr;
  if (!cluster.problem.empty()) {
    throw std::runtime_error(cluster.problem);
  }
}

} // namespace

const Here& here() {
  return me().here;
}

int lane() {
  return static_cast<int>(me().here.thread % 32);
}

void run_grid(int blocks, int threads, int cluster_size, const std::function<void()>& kernel) {
  const size_t fibers = static_cast<size_t>(cluster_size) * static_cast<size_t>(threads);
  void* stacks =
      mmap(nullptr, fibers * kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    throw std::runtime_error("no memory for the stacks of the emulated threads");
  }
  const auto release = [&](void* memory) { munmap(memory, fibers * kStackBytes); };
  const std::unique_ptr<void, decltype(release)> owner(stacks, release);
  for (int first = 0; first < blocks; first += cluster_size) {
    Cluster cluster;
    cluster.kernel = &kernel;
    cluster.blocks.resize(static_cast<size_t>(cluster_size));
    for (Block& block : cluster.blocks) {
      block.memory.assign(kSharedBytes + 128, 0xa5); // shared memory begins with anything
      const auto begin = reinterpret_cast<uintptr_t>(block.memory.data());
      block.shared = block.memory.data() + (128 - begin % 128) % 128;
      block.lanes.resize(static_cast<size_t>((threads + 31) / 32) * 3);
    }
    cluster.fibers.resize(fibers);
    for (size_t k = 0; k < fibers; ++k) {
      Fiber& fiber = cluster.fibers[k];
      const size_t rank = k / static_cast<size_t>(threads);
      fiber.block = &cluster.blocks[rank];
      fiber.here = {
          static_cast<unsigned>(k % static_cast<size_t>(threads)),
          static_cast<unsigned>(first) + static_cast<unsigned>(rank), static_cast<unsigned>(threads),
          static_cast<unsigned>(blocks), fiber.block->shared};
      getcontext(&fiber.begin);
      fiber.begin.uc_stack.ss_sp = static_cast<char*>(stacks) + k * kStackBytes;
      fiber.begin.uc_stack.ss_size = kStackBytes;
      fiber.begin.uc_link = nullptr;
      makecontext(&fiber.begin, &thread_main, 0);
    }
    run_cluster(cluster);
  }
}

void sync_block() {
  meet(me().block->rendezvous, static_cast<int>(me().here.threads));
}

void sync_cluster() {
  meet(running->rendezvous, static_cast<int>(running->fibers.size()));
}

void sync_lanes(unsigned mask) {
  meet(lanes_of(mask).rendezvous, __builtin_popcount(mask));
}

uint64_t* lane_values(unsigned mask) {
  return lanes_of(mask).values;
}

uint32_t address_of(const void* shared) {
  const auto* byte = static_cast<const unsigned char*>(shared);
  for (size_t rank = 0; rank < running->blocks.size(); ++rank) {
    const unsigned char* begin = running->blocks[rank].shared;
    if (byte >= begin && byte < begin + kSharedBytes) {
      return static_cast<uint32_t>(rank << kRankShift) | static_cast<uint32_t>(byte - begin);
    }
  }
  throw std::runtime_error("not an address in shared memory");
}

uint32_t address_in_block(uint32_t address, int rank) {
  return (static_cast<uint32_t>(rank) << kRankShift) | (address & ((1U << kRankShift) - 1));
}

void* at(uint32_t address) {
  const uint32_t within = address & ((1U << kRankShift) - 1);
  if (within >= static_cast<uint32_t>(kSharedBytes)) {
    throw std::runtime_error("an address beyond the shared memory");
  }
  return running->blocks.at(address >> kRankShift).shared + within;
}

void copy_later(uint32_t shared, const void* global, size_t bytes) {
  std::memset(at(shared), 0xff, bytes);
  me().copies.push_back({at(shared), global, bytes});
}

void commit_copies() {
  me().groups.push_back(std::move(me().copies));
  me().copies.clear();
}

void wait_for_copies(size_t groups_left) {
  for (auto& groups = me().groups; groups.size() > groups_left; groups.pop_front()) {
    for (const auto& [to, from, bytes] : groups.front()) {
      std::memcpy(to, from, bytes);
    }
  }
}

void barrier_init(uint32_t barrier, unsigned arrivals) {
  Block& block = running->blocks.at(barrier >> kRankShift);
  block.barriers[barrier & ((1U << kRankShift) - 1)] = {arrivals, arrivals, 0, 0};
  ++running->progress;
}

void barrier_arrive(uint32_t barrier, uint32_t expected_bytes) {
  Mbarrier& b = barrier_at(barrier);
  if (b.pending == 0) {
    throw std::runtime_error("more arrivals at a barrier than it was made for");
  }
  b.bytes += expected_bytes;
  --b.pending;
  b.check();
  ++running->progress;
}

void barrier_complete(uint32_t barrier, uint32_t bytes) {
  Mbarrier& b = barrier_at(barrier);
  b.bytes -= bytes;
  b.check();
  ++running->progress;
}

void barrier_wait(uint32_t barrier, uint32_t phase) {
  wait_until([&] { return barrier_at(barrier).phase != phase; });
}

void expect_aligned(const void* pointer, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes != 0) {
    throw std::runtime_error("a copy of misaligned memory");
  }
}

} // namespace emulation
