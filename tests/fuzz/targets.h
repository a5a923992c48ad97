#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// The readers of files that are not trusted, each as a function of bytes. Used by fuzz_test (a short, deterministic run
// in the tests) and by libFuzzer (scripts/checks/fuzz.sh).
namespace distill::fuzz {

// Names the input in errors.
inline constexpr const char* kSource = "the-input";

struct Target {
  const char* name; // also its folder in tests/fuzz/corpus
  // Ok, or an error whose message must hold `kSource` (readers of files: the file's path, which holds it).
  absl::Status (*read)(const uint8_t* data, size_t size);
};

const std::vector<Target>& targets();

} // namespace distill::fuzz
