#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace distill::base {

using Digest = std::array<uint8_t, 32>;

// SHA-256 (FIPS 180-4) over bytes given in pieces.
class Sha256 {
 public:
  void update(const void* bytes, size_t count);
  // Ends the message. The object must not be used afterwards.
  Digest finish();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_ = {};
  uint64_t length_ = 0; // bytes
};

Digest sha256(const void* bytes, size_t count);

// 64 lower-case hexadecimal digits.
std::string hex(const Digest& digest);

} // namespace distill::base
