#include "trainer/models/ops/rounded_sum.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "tests/trainer/models/test_device.h"

namespace distill::models {
namespace {

class RoundedSumTest : public DeviceTest {
 protected:
  static at::Tensor zeros(int64_t n) {
    return at::zeros({n}, at::TensorOptions().dtype(at::kBFloat16).device(test_device()));
  }
  static at::Tensor random(int64_t n) {
    return at::randn({n}).mul(at::randn({n}).mul(3).exp()).to(test_device());
  }
};

TEST_F(RoundedSumTest, ARoundedValueIsOneOfItsNeighboursAndItsExpectationIsTheValue) {
  constexpr int64_t kDraws = 2000;
  at::manual_seed(1);
  const at::Tensor values = random(257);
  const at::Tensor exact = values.cpu().to(at::kDouble);
  at::Tensor mean = at::zeros_like(exact);
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    at::Tensor sum = zeros(257);
    add_rounded(sum, values, /*accumulate=*/false, {.step = 7, .unit = 3, .draw = draw});
    const at::Tensor rounded = sum.cpu().to(at::kDouble);
    EXPECT_LE(((rounded - exact) / exact).abs().max().item<double>(), 1.0 / 128) << "one of the two next to it";
    mean += rounded / kDraws;
  }
  // A deviation of at most 2^-8 each time: the mean of 2000 is within 5 standard deviations.
  EXPECT_LT(((mean - exact) / exact).abs().max().item<double>(), 5.0 / 128 / 2 / std::sqrt(kDraws));
}

TEST_F(RoundedSumTest, TheSumOfPartsIsThatOfTheWhole) {
  at::manual_seed(2);
  const at::Tensor first = random(1024), second = random(1024);
  at::Tensor whole = zeros(1024), parts = zeros(1024);
  const auto add = [](at::Tensor sum, const at::Tensor& values, bool accumulate, int64_t begin, int64_t count) {
    add_rounded(
        sum.narrow(0, begin, count), values.narrow(0, begin, count), accumulate,
        {.step = 5, .unit = 9, .draw = accumulate ? 2 : 1, .first = 4096 + begin});
  };
  for (const bool accumulate : {false, true}) {
    add(whole, accumulate ? second : first, accumulate, 0, 1024);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 64}, {64, 604}, {668, 356}}) {
      add(parts, accumulate ? second : first, accumulate, begin, count);
    }
  }
  EXPECT_TRUE(at::equal(whole, parts));
  at::Tensor other = zeros(1024);
  add_rounded(other, first, /*accumulate=*/false, {.step = 5, .unit = 9, .draw = 2, .first = 4096});
  add(parts, first, /*accumulate=*/false, 0, 1024);
  EXPECT_FALSE(at::equal(other, parts)) << "each draw has its own random numbers";
}

TEST_F(RoundedSumTest, WhatIsNotFiniteStaysSo) {
  const float values[] = {NAN, INFINITY, -INFINITY, std::numeric_limits<float>::signaling_NaN(), 1, 0};
  const at::Tensor given = at::tensor(at::ArrayRef<float>(values)).to(test_device());
  for (int64_t draw = 0; draw < 50; ++draw) {
    at::Tensor sum = zeros(given.numel());
    add_rounded(sum, given, /*accumulate=*/false, {.draw = draw});
    const at::Tensor found = sum.cpu().to(at::kFloat);
    EXPECT_TRUE(std::isnan(found[0].item<float>()) && std::isnan(found[3].item<float>()));
    EXPECT_EQ(found[1].item<float>(), INFINITY);
    EXPECT_EQ(found[2].item<float>(), -INFINITY);
    EXPECT_EQ(found[4].item<float>(), 1);
    EXPECT_EQ(found[5].item<float>(), 0);
  }
}

// The figures of docs/memory.md: the error of a sum over micro-batches against fp64, relative to its norm.
TEST_F(RoundedSumTest, TheErrorOfASumOverMicroBatchesGrowsWithTheRootOfTheirNumber) {
  constexpr int64_t kElements = 1 << 16;
  double first_error = 0;
  for (const int64_t count : {1, 8, 64}) {
    at::manual_seed(3);
    at::Tensor sum = zeros(kElements), nearest = zeros(kElements);
    at::Tensor exact = at::zeros({kElements}, at::kDouble);
    const at::Tensor signal = at::randn({kElements}).mul(0.1).to(test_device());
    for (int64_t batch = 0; batch < count; ++batch) { // noise around a mean that a tenth as large is
      const at::Tensor values = signal + at::randn({kElements}).to(test_device());
      add_rounded(sum, values, batch > 0, {.step = 1, .unit = 2, .draw = batch + 1});
      nearest = batch > 0 ? (nearest.to(at::kFloat) + values).to(at::kBFloat16) : values.to(at::kBFloat16);
      exact += values.cpu().to(at::kDouble);
    }
    const auto error_of = [&](const at::Tensor& found) {
      return ((found.cpu().to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
    };
    std::printf(
        "%ld micro-batches: error %.2e of the norm, with rounding to nearest %.2e\n", count, error_of(sum),
        error_of(nearest));
    first_error = count == 1 ? error_of(sum) : first_error;
    EXPECT_LT(error_of(sum), 1.2 * first_error * std::sqrt(static_cast<double>(count)));
    EXPECT_GT(error_of(sum), 1e-4) << "it is rounded";
    EXPECT_LT(error_of(sum), 0.03);
  }
}

TEST_F(RoundedSumTest, OtherTensorsAreErrors) {
  const at::Tensor values = random(64);
  EXPECT_THROW(add_rounded(at::zeros_like(values), values, false, {}), c10::Error);
  EXPECT_THROW(add_rounded(zeros(63), values, false, {}), c10::Error);
  EXPECT_THROW(add_rounded(zeros(64), values, false, {.first = 2}), c10::Error);
}

} // namespace
} // namespace distill::models
