#include "trainer/device/small_copy.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace distill::device {
namespace {

class SmallCopyGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
  }
  static at::TensorOptions on_device(at::ScalarType dtype) {
    return at::TensorOptions().dtype(dtype).device(at::kCUDA, 0);
  }
  static at::Tensor pinned(const at::Tensor& tensor) {
    return tensor.pin_memory();
  }
};

TEST_F(SmallCopyGpuTest, CopiesBothWaysForAnySize) {
  for (const int64_t count : {0, 1, 3, 16, 1000, 8192}) {
    for (const auto dtype : {at::kLong, at::kInt, at::kDouble, at::kByte}) {
      const at::Tensor host = pinned(at::randint(0, 100, {count}).to(dtype));
      const at::Tensor there = at::zeros({count}, on_device(dtype));
      const at::Tensor back = pinned(at::zeros({count}, dtype));
      copy_small(there, host);
      copy_small(back, there);
      EXPECT_TRUE(at::equal(there.cpu(), host)) << count << dtype;
      EXPECT_TRUE(at::equal(back, host)) << count << dtype;
    }
  }
}

// Prints what a step's small copies wait, beside large copies of other streams in both directions.
TEST_F(SmallCopyGpuTest, DoNotWaitForTheLargeCopiesOfOtherStreams) {
  constexpr int64_t kBytes = int64_t{32} << 20, kCopies = 200;
  const at::Tensor host_in = pinned(at::zeros({kBytes}, at::kByte)), host_out = pinned(at::zeros({kBytes}, at::kByte));
  const at::Tensor in = at::zeros({kBytes}, on_device(at::kByte)), out = at::zeros({kBytes}, on_device(at::kByte));
  const at::Tensor tokens = pinned(at::zeros({8192}, at::kLong)), numbers = pinned(at::zeros({30}, at::kDouble));
  const at::Tensor tokens_there = at::zeros({8192}, on_device(at::kLong));
  const at::Tensor numbers_there = at::zeros({30}, on_device(at::kDouble));
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const auto milliseconds = [&](bool high_priority, bool by_kernel) {
    const at::Device device(at::kCUDA, 0);
    const c10::Stream first = guard.getStreamFromGlobalPool(device, high_priority);
    const c10::Stream second = guard.getStreamFromGlobalPool(device, high_priority);
    (void)tokens_there.cpu(); // waits for the device
    for (int64_t i = 0; i < kCopies; ++i) {
      {
        const c10::StreamGuard use(first);
        in.copy_(host_in, /*non_blocking=*/true);
      }
      const c10::StreamGuard use(second);
      host_out.copy_(out, /*non_blocking=*/true);
    }
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    const c10::Stream compute = guard.getStream(device);
    begin.record(compute);
    for (int i = 0; i < 3; ++i) {
      if (by_kernel) {
        copy_small(tokens_there, tokens);
        copy_small(numbers, numbers_there);
      } else {
        tokens_there.copy_(tokens, /*non_blocking=*/true);
        numbers.copy_(numbers_there, /*non_blocking=*/true);
      }
    }
    end.record(compute);
    end.synchronize();
    return begin.elapsedTime(end);
  };
  milliseconds(/*high_priority=*/true, /*by_kernel=*/true);
  for (const bool high : {true, false}) {
    std::printf(
        "six small copies beside %ld large ones on streams of %s priority: by copy engines %.2f ms, by kernels %.2f ms\n",
        2 * kCopies, high ? "high" : "the same", milliseconds(high, false), milliseconds(high, true));
  }
  EXPECT_LT(milliseconds(/*high_priority=*/true, /*by_kernel=*/true), 20);
}

} // namespace
} // namespace distill::device
