#pragma once

#include <cstdint>
#include <string_view>

// Keys of random numbers (ops/normal_math.h) that follow from a seed and a name or a number.
namespace distill::models {

// The finaliser of splitmix64: neighbouring numbers give unrelated keys.
constexpr uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

// The key of what has this name; the name is hashed by FNV-1a.
constexpr uint64_t random_key(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return mixed(mixed(seed) ^ hash);
}

} // namespace distill::models
