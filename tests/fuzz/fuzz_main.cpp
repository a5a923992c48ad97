#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/targets.h"

// libFuzzer's entries. FUZZ_TARGET in the environment names one of the targets; without it they are listed. An
// exception that a reader lets out is a finding, as is anything that the sanitizers see.
namespace {

const distill::fuzz::Target* chosen = nullptr;

} // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* name = std::getenv("FUZZ_TARGET");
  for (const distill::fuzz::Target& target : distill::fuzz::targets()) {
    if (name == nullptr) {
      std::puts(target.name);
    } else if (std::string_view(name) == target.name) {
      chosen = &target;
    }
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "FUZZ_TARGET: expected one of the targets, found %s\n", name == nullptr ? "none" : name);
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Status status = chosen->read(data, size);
  const bool named = status.ok() || std::string(status.message()).find(distill::fuzz::kSource) != std::string::npos;
  if (!named) {
    __builtin_trap(); // an error that does not name the file
  }
  return 0;
}
