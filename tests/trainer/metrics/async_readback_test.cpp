#include "trainer/metrics/async_readback.h"

#include <gtest/gtest.h>

namespace distill::metrics {
namespace {

at::Tensor numbers(double first) {
  return at::arange(first, first + 3, at::kDouble);
}

TEST(AsyncReadback, GivesStepsInOrderAndLate) {
  for (const int64_t lag : {0, 1, 2}) {
    AsyncReadback readback(at::kCPU, 3, lag, std::chrono::seconds(1));
    EXPECT_FALSE(readback.pop(/*all=*/true).has_value());
    for (int64_t step = 0; step < 6; ++step) {
      at::Tensor sent = numbers(10.0 * static_cast<double>(step));
      readback.push(sent);
      sent.zero_(); // the next step overwrites its numbers
      const auto read = readback.pop(/*all=*/false);
      ASSERT_EQ(read.has_value(), step >= lag);
      if (read) {
        EXPECT_EQ(*read, (std::vector<double>{10.0 * (step - lag), 10.0 * (step - lag) + 1, 10.0 * (step - lag) + 2}));
      }
      EXPECT_FALSE(readback.pop(/*all=*/false).has_value());
    }
    for (int64_t left = lag; left > 0; --left) {
      EXPECT_EQ(readback.pop(/*all=*/true)->front(), 10.0 * static_cast<double>(6 - left));
    }
    EXPECT_FALSE(readback.pop(/*all=*/true).has_value());
  }
}

TEST(AsyncReadback, RefusesOtherNumbersThanItWasMadeFor) {
  AsyncReadback readback(at::kCPU, 3, 1, std::chrono::seconds(1));
  EXPECT_THROW(readback.push(at::zeros({4}, at::kDouble)), c10::Error);
  EXPECT_THROW(readback.push(at::zeros({3}, at::kFloat)), c10::Error);
}

} // namespace
} // namespace distill::metrics
