#include "trainer/device/allocator_model.h"

#include <absl/container/flat_hash_map.h>

namespace distill::device {
namespace {

class ExactAllocator : public AllocatorModel {
 public:
  BlockId allocate(int64_t bytes) override {
    sizes_.push_back(bytes);
    reserved_ += bytes;
    return static_cast<BlockId>(sizes_.size()) - 1;
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

 private:
  std::vector<int64_t> sizes_;
  int64_t reserved_ = 0;
};

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMinBlock = 512;
constexpr int64_t kSmall = kMiB; // requests up to here come from small segments
constexpr int64_t kSmallSegment = 2 * kMiB;
constexpr int64_t kLargeSegment = 20 * kMiB;
constexpr int64_t kMinLarge = 10 * kMiB;
constexpr int64_t kRoundLarge = 2 * kMiB;

int64_t round_up(int64_t value, int64_t quantum) {
  return (value + quantum - 1) / quantum * quantum;
}

class CachingAllocator : public AllocatorModel {
 public:
  BlockId allocate(int64_t bytes) override;
  void release(BlockId block) override;
  int64_t size(BlockId block) const override {
    return blocks_[block].size;
  }
  int64_t reserved() const override {
    return reserved_;
  }

 private:
  // A piece of a segment; pieces of one segment are linked in the order of their addresses.
  struct Block {
    int64_t segment = 0;
    int64_t offset = 0;
    int64_t size = 0;
    BlockId before = -1, after = -1;
    bool in_use = false;
    bool small = false;
  };
  // Free blocks by size, then by address.
  using FreeKey = std::tuple<int64_t, int64_t, int64_t, BlockId>;
  FreeKey key(BlockId id) const {
    const Block& block = blocks_[id];
    return {block.size, block.segment, block.offset, id};
  }
  std::set<FreeKey>& pool(const Block& block) {
    return block.small ? small_ : large_;
  }
  BlockId new_block(const Block& block);
  void absorb(BlockId block, BlockId neighbour);

  std::vector<Block> blocks_;
  std::vector<BlockId> unused_; // entries of blocks_
  std::set<FreeKey> small_, large_;
  int64_t segments_ = 0;
  int64_t reserved_ = 0;
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

BlockId CachingAllocator::allocate(int64_t bytes) {
  const int64_t size = std::max(kMinBlock, round_up(bytes, kMinBlock));
  const bool small = size <= kSmall;
  std::set<FreeKey>& free = small ? small_ : large_;
  BlockId id = -1;
  if (const auto found = free.lower_bound({size, -1, -1, -1}); found != free.end()) {
    id = std::get<3>(*found);
    free.erase(found);
  } else {
    const int64_t segment = small ? kSmallSegment : size < kMinLarge ? kLargeSegment : round_up(size, kRoundLarge);
    reserved_ += segment;
    id = new_block({.segment = segments_++, .size = segment, .small = small});
  }
  const int64_t rest = blocks_[id].size - size;
  if (small ? rest >= kMinBlock : rest > kSmall) {
    Block tail = blocks_[id];
    tail.offset += size;
    tail.size = rest;
    tail.before = id;
    const BlockId tail_id = new_block(tail);
    if (tail.after >= 0) {
      blocks_[tail.after].before = tail_id;
    }
    blocks_[id].after = tail_id;
    blocks_[id].size = size;
    free.insert(key(tail_id));
  }
  blocks_[id].in_use = true;
  return id;
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

void CachingAllocator::release(BlockId id) {
  blocks_[id].in_use = false;
  std::set<FreeKey>& free = pool(blocks_[id]);
  if (const BlockId after = blocks_[id].after; after >= 0 && !blocks_[after].in_use) {
    free.erase(key(after));
    absorb(id, after);
  }
  if (const BlockId before = blocks_[id].before; before >= 0 && !blocks_[before].in_use) {
    free.erase(key(before));
    absorb(before, id);
    id = before;
  }
  free.insert(key(id));
}

} // namespace

std::unique_ptr<AllocatorModel> exact_allocator() {
  return std::make_unique<ExactAllocator>();
}

std::unique_ptr<AllocatorModel> caching_allocator() {
  return std::make_unique<CachingAllocator>();
}

} // namespace distill::device
