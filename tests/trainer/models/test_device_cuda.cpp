#include "tests/trainer/models/test_device.h"

namespace distill::models {

at::Device test_device() {
  return {at::kCUDA, 0};
}

} // namespace distill::models
