#include "trainer/device/allocator_model.h"

#include <set>
#include <tuple>
#include <vector>

namespace distill::device {
namespace {

class ExactAllocator : public AllocatorModel {
 public:
  BlockId allocate(int64_t bytes) override {
    sizes_.push_back(bytes);
    reserved_ += bytes;
    return static_cast<BlockId>(sizes_.size()) - 1;
  }
  BlockId allocate_directly(int64_t bytes) override {
    return allocate(bytes);
  }
  void release(BlockId block) override {
    reserved_ -= sizes_[block];
  }
  int64_t size(BlockId block) const override {
    return sizes_[block];
  }
  int64_t reserved() const override {
    return reserved_;
  }
  int64_t give_backs() const override {
    return 0;
  }

 private:
  std::vector<int64_t> sizes_;
  int64_t reserved_ = 0;
};

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMinBlock = 512;
constexpr int64_t kSmall = kMiB; // requests up to here come from the pool of small blocks
constexpr int64_t kSmallSegment = 2 * kMiB; // or page
constexpr int64_t kLargeSegment = 20 * kMiB; // or page
constexpr int64_t kMinLarge = 10 * kMiB;
constexpr int64_t kRoundLarge = 2 * kMiB;
constexpr int64_t kDirectPage = 2 * kMiB; // of memory that is mapped past the allocator
constexpr int64_t kSignalPad = 9216; // that libtorch's symmetric memory adds to each piece of peer memory
constexpr int64_t kAddresses = int64_t{1} << 50; // of an expandable segment: more than it will need

int64_t round_up(int64_t value, int64_t quantum) {
  return (value + quantum - 1) / quantum * quantum;
}

int64_t direct_bytes(int64_t bytes) {
  return round_up(bytes + kSignalPad, kDirectPage);
}

class CachingAllocator : public AllocatorModel {
 public:
  CachingAllocator(AllocatorKind kind, int64_t capacity)
      : expandable_(kind == AllocatorKind::kExpandable), capacity_(capacity) {
    if (expandable_) {
      for (Pool* pool : {&small_, &large_}) {
        const BlockId all = new_block({.segment = segments_++, .size = kAddresses, .mapped = false, .pool = pool});
        pool->unmapped.insert(address(all));
      }
    }
  }

  BlockId allocate(int64_t bytes) override;
  BlockId allocate_directly(int64_t bytes) override {
    reserved_ += direct_bytes(bytes);
    return new_block({.size = bytes, .in_use = true});
  }
  void release(BlockId block) override;
  int64_t size(BlockId block) const override {
    return blocks_[block].size;
  }
  int64_t reserved() const override {
    return reserved_;
  }
  int64_t give_backs() const override {
    return give_backs_;
  }

 private:
  using SizeKey = std::tuple<int64_t, int64_t, int64_t, BlockId>; // size, segment, offset
  using AddressKey = std::tuple<int64_t, int64_t, BlockId>; // segment, offset
  struct Pool {
    int64_t segment_bytes = 0; // of a segment for requests that need no larger one, or of a page
    std::set<SizeKey> free; // mapped blocks that are not in use, by size and then by address
    std::set<AddressKey> unmapped; // expandable segments: the rest of the addresses
  };
  // A piece of a segment; pieces of one segment are linked in the order of their addresses.
  struct Block {
    int64_t segment = 0;
    int64_t offset = 0;
    int64_t size = 0;
    BlockId before = -1, after = -1;
    bool in_use = false;
    bool mapped = true;
    Pool* pool = nullptr; // null: taken past the allocator
  };

  SizeKey key(BlockId id) const {
    return {blocks_[id].size, blocks_[id].segment, blocks_[id].offset, id};
  }
  AddressKey address(BlockId id) const {
    return {blocks_[id].segment, blocks_[id].offset, id};
  }
  bool is_free(BlockId id) const {
    return id >= 0 && !blocks_[id].in_use;
  }
  bool is_full(int64_t bytes) const {
    return capacity_ > 0 && reserved_ + bytes > capacity_;
  }
  BlockId new_block(const Block& block);
  BlockId split(BlockId id, int64_t bytes);
  BlockId merge(BlockId id);
  void remove_from_pool(BlockId id);
  void absorb(BlockId block, BlockId neighbour);

  int64_t room(BlockId id) const;
  BlockId take_free(Pool& pool, int64_t size);
  BlockId take_new(Pool& pool, int64_t size);
  BlockId new_segment(Pool& pool, int64_t size, bool beyond);
  BlockId extend(Pool& pool, int64_t size, bool beyond);
  BlockId lowest_place(const Pool& pool, int64_t size) const;
  BlockId map(BlockId id, int64_t bytes, bool beyond);
  void unmap(BlockId id);
  void give_back();

  bool expandable_;
  int64_t capacity_;
  std::vector<Block> blocks_;
  std::vector<BlockId> unused_; // entries of blocks_
  Pool small_{.segment_bytes = kSmallSegment}, large_{.segment_bytes = kLargeSegment};
  int64_t segments_ = 0;
  int64_t reserved_ = 0;
  int64_t give_backs_ = 0;
};

BlockId CachingAllocator::new_block(const Block& block) {
  if (unused_.empty()) {
    blocks_.push_back(block);
    return static_cast<BlockId>(blocks_.size()) - 1;
  }
  const BlockId id = unused_.back();
  unused_.pop_back();
  blocks_[id] = block;
  return id;
}

// Leaves `bytes` to a block that is in no pool; the rest becomes a block, which is returned and in no pool either.
BlockId CachingAllocator::split(BlockId id, int64_t bytes) {
  Block tail = blocks_[id];
  tail.offset += bytes;
  tail.size -= bytes;
  tail.before = id;
  const BlockId tail_id = new_block(tail);
  if (tail.after >= 0) {
    blocks_[tail.after].before = tail_id;
  }
  blocks_[id].after = tail_id;
  blocks_[id].size = bytes;
  return tail_id;
}

// `neighbour` lies right after `block`; both are free and in no pool.
void CachingAllocator::absorb(BlockId block, BlockId neighbour) {
  blocks_[block].size += blocks_[neighbour].size;
  blocks_[block].after = blocks_[neighbour].after;
  if (blocks_[block].after >= 0) {
    blocks_[blocks_[block].after].before = block;
  }
  unused_.push_back(neighbour);
}

void CachingAllocator::remove_from_pool(BlockId id) {
  Pool& pool = *blocks_[id].pool;
  if (blocks_[id].mapped) {
    pool.free.erase(key(id));
  } else {
    pool.unmapped.erase(address(id));
  }
}

// Merges a block that is in no pool with its neighbours, and puts the result into its pool.
BlockId CachingAllocator::merge(BlockId id) {
  const auto fits = [&](BlockId other) { return is_free(other) && blocks_[other].mapped == blocks_[id].mapped; };
  if (const BlockId after = blocks_[id].after; fits(after)) {
    remove_from_pool(after);
    absorb(id, after);
  }
  if (const BlockId before = blocks_[id].before; fits(before)) {
    remove_from_pool(before);
    absorb(before, id);
    id = before;
  }
  Pool& pool = *blocks_[id].pool;
  if (blocks_[id].mapped) {
    pool.free.insert(key(id));
  } else {
    pool.unmapped.insert(address(id));
  }
  return id;
}

// Bytes that a free block has or can grow to.
int64_t CachingAllocator::room(BlockId id) const {
  const BlockId after = blocks_[id].after;
  return blocks_[id].size + (after >= 0 && !blocks_[after].mapped ? blocks_[after].size : 0);
}

BlockId CachingAllocator::take_free(Pool& pool, int64_t size) {
  auto found = pool.free.lower_bound({size, -1, -1, -1});
  if (found == pool.free.end()) {
    return -1;
  }
  if (expandable_) {
    auto next = std::next(found);
    while (next != pool.free.end() && room(std::get<3>(*next)) < room(std::get<3>(*found))) {
      found = next++;
    }
  }
  const BlockId id = std::get<3>(*found);
  pool.free.erase(found);
  return id;
}

BlockId CachingAllocator::take_new(Pool& pool, int64_t size) {
  const auto attempt = [&](bool beyond) {
    return expandable_ ? extend(pool, size, beyond) : new_segment(pool, size, beyond);
  };
  BlockId id = attempt(/*beyond=*/false);
  if (id < 0) {
    give_back();
    id = attempt(/*beyond=*/false);
  }
  return id < 0 ? attempt(/*beyond=*/true) : id;
}

// Takes a segment from the device; -1: the device is full. `beyond`: beyond the capacity, if need be.
BlockId CachingAllocator::new_segment(Pool& pool, int64_t size, bool beyond) {
  const int64_t bytes = size < kMinLarge ? pool.segment_bytes : round_up(size, kRoundLarge);
  if (is_full(bytes) && !beyond) {
    return -1;
  }
  reserved_ += bytes;
  return new_block({.segment = segments_++, .size = bytes, .pool = &pool});
}

// The lowest free or unmapped block that begins a run of such blocks of at least `size`, with an unmapped one in it.
BlockId CachingAllocator::lowest_place(const Pool& pool, int64_t size) const {
  for (const AddressKey& entry : pool.unmapped) {
    BlockId first = std::get<2>(entry);
    if (is_free(blocks_[first].before)) {
      first = blocks_[first].before;
    }
    int64_t bytes = 0;
    for (BlockId id = first; bytes < size && is_free(id); id = blocks_[id].after) {
      bytes += blocks_[id].size;
    }
    if (bytes >= size) {
      return first;
    }
  }
  return -1; // never: the last unmapped block has no end
}

// Maps as many pages as a free block of `size` needs, at the lowest place; -1: the device is full.
BlockId CachingAllocator::extend(Pool& pool, int64_t size, bool beyond) {
  BlockId id = lowest_place(pool, size);
  if (!blocks_[id].mapped) {
    id = map(id, std::min(blocks_[id].size, size), beyond);
  }
  while (id >= 0 && blocks_[id].size < size) {
    const BlockId next = blocks_[id].after; // unmapped: a free one would have been merged
    id = map(next, std::min(size - blocks_[id].size, blocks_[next].size), beyond);
  }
  if (id >= 0) {
    pool.free.erase(key(id));
  }
  return id;
}

// Maps the pages of the first `bytes` of an unmapped block, and merges them with their free neighbours.
BlockId CachingAllocator::map(BlockId id, int64_t bytes, bool beyond) {
  Pool& pool = *blocks_[id].pool;
  const int64_t mapped = round_up(bytes, pool.segment_bytes);
  if (is_full(mapped) && !beyond) {
    return -1;
  }
  reserved_ += mapped;
  pool.unmapped.erase(address(id));
  if (mapped < blocks_[id].size) {
    pool.unmapped.insert(address(split(id, mapped)));
  }
  blocks_[id].mapped = true;
  return merge(id);
}

// Returns the whole pages of a free block to the device.
void CachingAllocator::unmap(BlockId id) {
  Pool& pool = *blocks_[id].pool;
  const int64_t page = pool.segment_bytes, offset = blocks_[id].offset;
  const int64_t begin = round_up(offset, page), end = (offset + blocks_[id].size) / page * page;
  if (begin >= end) {
    return;
  }
  pool.free.erase(key(id));
  if (begin > offset) {
    const BlockId rest = split(id, begin - offset);
    pool.free.insert(key(id));
    id = rest;
  }
  if (blocks_[id].size > end - begin) {
    pool.free.insert(key(split(id, end - begin)));
  }
  reserved_ -= end - begin;
  blocks_[id].mapped = false;
  merge(id);
}

void CachingAllocator::give_back() {
  ++give_backs_;
  for (Pool* pool : {&large_, &small_}) {
    const std::vector<SizeKey> free(pool->free.begin(), pool->free.end());
    for (const SizeKey& entry : free) {
      const BlockId id = std::get<3>(entry);
      if (expandable_) {
        unmap(id);
      } else if (blocks_[id].before < 0 && blocks_[id].after < 0) {
        reserved_ -= blocks_[id].size;
        pool->free.erase(entry);
        unused_.push_back(id);
      }
    }
  }
}

BlockId CachingAllocator::allocate(int64_t bytes) {
  const int64_t size = std::max(kMinBlock, round_up(bytes, kMinBlock));
  const bool small = size <= kSmall;
  Pool& pool = small ? small_ : large_;
  BlockId id = take_free(pool, size);
  if (id < 0) {
    id = take_new(pool, size);
  }
  const int64_t rest = blocks_[id].size - size;
  if (small || expandable_ ? rest >= kMinBlock : rest > kSmall) {
    pool.free.insert(key(split(id, size)));
  }
  blocks_[id].in_use = true;
  return id;
}

void CachingAllocator::release(BlockId id) {
  blocks_[id].in_use = false;
  if (blocks_[id].pool == nullptr) {
    reserved_ -= direct_bytes(blocks_[id].size);
    unused_.push_back(id);
    return;
  }
  merge(id);
}

} // namespace

std::unique_ptr<AllocatorModel> exact_allocator() {
  return std::make_unique<ExactAllocator>();
}

std::unique_ptr<AllocatorModel> caching_allocator(AllocatorKind kind, int64_t capacity) {
  return std::make_unique<CachingAllocator>(kind, capacity);
}

} // namespace distill::device
