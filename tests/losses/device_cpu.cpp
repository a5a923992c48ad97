#include "tests/losses/device.h"

namespace distill::losses::testing {

c10::Device test_device() {
  return c10::kCPU;
}

} // namespace distill::losses::testing
