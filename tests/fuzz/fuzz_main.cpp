#include "tests/fuzz/targets.h"

// libFuzzer's entry: DISTILL_FUZZ_TARGET names one of the functions of targets.h. An exception that a reader lets out
// is a finding, as is anything that the sanitizers see.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Status status = distill::fuzz::DISTILL_FUZZ_TARGET(data, size);
  const bool named = status.ok() || std::string(status.message()).find(distill::fuzz::kSource) != std::string::npos;
  if (!named) {
    __builtin_trap(); // an error that does not name the file
  }
  return 0;
}
