#pragma once

#include <c10/core/Device.h>

namespace distill::losses::testing {

// Where this test program runs the head: device_cpu.cpp or device_gpu.cpp defines it.
c10::Device test_device();

} // namespace distill::losses::testing
