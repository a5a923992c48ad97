#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>

// The readers of a teacher's cache as functions of bytes (targets.h).
namespace distill::fuzz {

absl::Status read_cache_manifest(const uint8_t* data, size_t size);
// The first byte says what rows the others are.
absl::Status read_cache_rows(const uint8_t* data, size_t size);
// Inputs of an odd size get the checksums that fit, and are read as the first part of a cache.
absl::Status read_cache_part(const uint8_t* data, size_t size);

} // namespace distill::fuzz
