#include "trainer/models/ops/dropout.h"

#include "tests/trainer/models/test_device.h"

namespace distill::models {
namespace {

using DropoutTest = DeviceTest;

at::Tensor mask(int64_t rows, int64_t columns, const Dropout& options) {
  return dropout(at::ones({rows, columns}, at::TensorOptions().dtype(at::kFloat).device(test_device())), options);
}

TEST_F(DropoutTest, ElementsAreLeftOutOrDividedByWhatRemains) {
  for (const double probability : {0.05, 0.5, 0.9}) {
    const at::Tensor kept = mask(400, 500, {.probability = probability, .seed = 1});
    const double share = kept.eq(0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, probability, 5 * std::sqrt(probability * (1 - probability) / (400 * 500)));
    EXPECT_NEAR(kept.max().item<double>(), 1 / (1 - probability), 1e-6);
    EXPECT_EQ(at::logical_or(kept.eq(0), kept.eq(kept.max())).all().item<bool>(), true);
  }
  const at::Tensor x = randn({7, 13}, at::kBFloat16);
  EXPECT_TRUE(at::equal(dropout(x, {.probability = 0}), x));
}

TEST_F(DropoutTest, ARowHasTheSameMaskWhereverItIsComputed) {
  const Dropout options{.probability = 0.4, .seed = 9, .step = 3, .stream = 2, .first_row = 50};
  for (const int64_t columns : {1, 13, 64}) { // rows that do not begin at a group of random words, too
    const at::Tensor whole = mask(11, columns, options);
    for (const int64_t first : {1, 4, 10}) {
      Dropout part = options;
      part.first_row += first;
      EXPECT_TRUE(at::equal(mask(11 - first, columns, part), whole.narrow(0, first, 11 - first))) << columns;
    }
  }
}

TEST_F(DropoutTest, SeedsStepsAndStreamsHaveMasksOfTheirOwn) {
  const Dropout options{.probability = 0.5, .seed = 9, .step = 3, .stream = 2};
  std::vector<Dropout> others(4, options);
  others[0].seed = 10;
  others[1].step = 4;
  others[2].stream = 3;
  others[3].first_row = 1;
  const at::Tensor own = mask(64, 64, options);
  for (const Dropout& other : others) {
    const double equal = own.eq(mask(64, 64, other)).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(equal, 0.5, 0.06);
  }
}

TEST_F(DropoutTest, TheHostAndTheDeviceLeaveOutTheSame) {
  const Dropout options{.probability = 0.3, .seed = 2, .step = 1, .stream = 5, .first_row = 3};
  const at::Tensor x = at::ones({17, 30}, at::kFloat);
  EXPECT_TRUE(at::equal(dropout(x.to(test_device()), options).cpu(), dropout(x, options)));
}

} // namespace
} // namespace distill::models
