#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "trainer/device/device_hooks.h"
#include "trainer/optim/square_sum.h"

namespace distill::optim {
namespace {

class SquareSumGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
    at::manual_seed(4);
  }
};

// The reference adds up pieces, so that it needs no fp64 copy of the whole.
double exact(const at::Tensor& values) {
  double sum = 0;
  for (const at::Tensor& piece : values.split(int64_t{1} << 24)) {
    sum += piece.to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

TEST_F(SquareSumGpuTest, IsExactToFp64RoundingAtAnySizeAndAlignment) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t count : {1, 3, 1023, 270'337, 40'000'001, 525'000'000}) {
      const at::Tensor values = at::randn({count + 1}, at::TensorOptions().dtype(dtype).device(at::kCUDA));
      for (const int64_t first : {0, 1}) { // 1: not aligned to a pack of values
        const at::Tensor part = values.narrow(0, first, count);
        EXPECT_NEAR(square_sum({part}).item<double>() / exact(part), 1, 1e-13) << count << " from " << first << dtype;
      }
    }
  }
}

TEST_F(SquareSumGpuTest, AddsUpTensorsAndGivesTheSameBitsAgain) {
  const at::Tensor a = at::randn({1'000'003}, at::kCUDA), b = at::randn({77}, at::kCUDA);
  const double sum = square_sum({a, b}).item<double>();
  EXPECT_NEAR(sum / (exact(a) + exact(b)), 1, 1e-13);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(square_sum({a, b}).item<double>(), sum);
  }
}

TEST_F(SquareSumGpuTest, ReadsAtTheSpeedOfMemory) {
  const at::Tensor values = at::randn({int64_t{1} << 28}, at::kCUDA);
  const auto seconds = [&](const auto& run) {
    run();
    device::synchronize(values.device());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20; ++i) {
      run();
    }
    device::synchronize(values.device());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / 20;
  };
  const double ours = seconds([&] { square_sum({values}); });
  const double aten = seconds([&] { at::linalg_vector_norm(values); });
  std::printf(
      "square_sum of 2^28: %.0f us, %.0f GB/s; linalg_vector_norm: %.0f us\n", 1e6 * ours,
      static_cast<double>(values.nbytes()) / ours / 1e9, 1e6 * aten);
  EXPECT_LT(ours, 1.25 * aten);
}

} // namespace
} // namespace distill::optim
