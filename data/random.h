#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace distill::data {

// Generators of our own: std::shuffle and the distributions of <random> differ between standard libraries, but the
// order of the training data must not.

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t derive_key(uint64_t key, uint64_t value) {
  return mix64(key ^ mix64(value));
}

// Fisher-Yates with SplitMix64.
template <typename T>
void shuffle(std::vector<T>& items, uint64_t key) {
  uint64_t counter = 0;
  for (size_t i = items.size(); i > 1; --i) {
    const uint64_t bits = mix64(key + 0x9e3779b97f4a7c15 * ++counter);
    const auto j = static_cast<size_t>((static_cast<unsigned __int128>(bits) * i) >> 64);
    std::swap(items[i - 1], items[j]);
  }
}

// A permutation of [0, size) that takes no memory: a Feistel network on [0, 4^h), the smallest such range that holds
// `size`, applied again until the result is below `size` (cycle walking; Black, Rogaway 2002). 4^h is at least 256,
// since smaller networks are measurably unfair.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t key) : size_(size), key_(key) {
    while (uint64_t{1} << (2 * half_bits_) < size) {
      ++half_bits_;
    }
  }

  uint64_t operator()(uint64_t index) const {
    do {
      index = step(index);
    } while (index >= size_);
    return index;
  }

 private:
  static constexpr uint64_t kRounds = 8;

  uint64_t step(uint64_t index) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = index >> half_bits_;
    uint64_t right = index & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (derive_key(key_ + round, right) & mask);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  uint64_t size_;
  uint64_t key_;
  uint64_t half_bits_ = 4;
};

} // namespace distill::data
