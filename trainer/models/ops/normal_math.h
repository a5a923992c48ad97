#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define DISTILL_HOST_DEVICE __host__ __device__
#define DISTILL_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#else
#define DISTILL_HOST_DEVICE
// A source that is built with the flags of one instruction set must not leave a function with them to other sources.
#define DISTILL_HOST_DEVICE_INLINE __attribute__((always_inline)) inline
#endif

// Random normal values that depend on a key and a position alone, for the host and for kernels.
namespace distill::models {

constexpr int kNormalGroup = 4;

// The first four words of stream `stream` of Philox 4x32-10 (Salmon et al., 2011) with this key: at::Philox4_32(key,
// stream) gives the same.
DISTILL_HOST_DEVICE_INLINE void philox(uint64_t key, uint64_t stream, uint32_t words[kNormalGroup]) {
  uint32_t counter[4] = {0, 0, static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  uint32_t keys[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53U} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * counter[2];
    counter[0] = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ keys[0];
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ keys[1];
    counter[3] = static_cast<uint32_t>(product0);
    keys[0] += 0x9E3779B9U;
    keys[1] += 0xBB67AE85U;
  }
  for (int i = 0; i < kNormalGroup; ++i) {
    words[i] = counter[i];
  }
}

// Four standard normal values (Box and Muller): elements 4 * group to 4 * group + 3 of the key's sequence. The host and
// a GPU differ in the last bits of their logarithms, sines and cosines.
DISTILL_HOST_DEVICE inline void normal_group(uint64_t key, int64_t group, float values[kNormalGroup]) {
  uint32_t words[kNormalGroup];
  philox(key, static_cast<uint64_t>(group), words);
  for (int pair = 0; pair < kNormalGroup; pair += 2) {
    const double u1 = (static_cast<double>(words[pair]) + 1.0) * 0x1p-32; // (0, 1]
    const double u2 = static_cast<double>(words[pair + 1]) * 0x1p-32;
    const float radius = sqrtf(-2.0F * logf(static_cast<float>(u1)));
    const auto angle = static_cast<float>(6.283185307179586 * u2);
    values[pair] = radius * cosf(angle);
    values[pair + 1] = radius * sinf(angle);
  }
}

} // namespace distill::models
