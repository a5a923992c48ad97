#include "trainer/teacher_cache/row_format.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace distill::teacher_cache {
namespace {

// Rows of very different sizes, with a zero row and a value far from the others.
at::Tensor states(int64_t hidden) {
  at::manual_seed(3);
  at::Tensor hidden_RG = at::randn({9, hidden}) * at::pow(10, at::arange(-4, 5, at::kFloat)).unsqueeze(1);
  hidden_RG[2].zero_();
  hidden_RG[4][hidden / 2] = 300;
  return hidden_RG;
}

class EveryEncoding : public testing::TestWithParam<Encoding> {};

TEST_P(EveryEncoding, RowsHaveTheirBytesAndReadBackToTheirDtype) {
  for (const int64_t hidden : {64, 100, 7}) {
    const RowFormat format{GetParam(), hidden};
    const at::Tensor rows_RW = encode(format, states(hidden));
    EXPECT_EQ(rows_RW.scalar_type(), at::kByte);
    EXPECT_EQ(rows_RW.sizes(), (std::vector<int64_t>{9, format.row_bytes()}));
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor back_RG = decode(format, rows_RW, dtype);
      EXPECT_EQ(back_RG.scalar_type(), dtype);
      EXPECT_EQ(back_RG.sizes(), (std::vector<int64_t>{9, hidden}));
    }
  }
}

TEST_P(EveryEncoding, EachRowStandsAlone) {
  const RowFormat format{GetParam(), 100};
  const at::Tensor all_RW = encode(format, states(100));
  const at::Tensor some_RW = encode(format, states(100).slice(0, 3, 6));
  EXPECT_TRUE(at::equal(all_RW.slice(0, 3, 6), some_RW));
}

TEST_P(EveryEncoding, ShapesAreTheSameOnMetaTensors) {
  const RowFormat format{GetParam(), 100};
  const at::Tensor rows_RW = encode(format, at::empty({5, 100}, at::TensorOptions().device(at::kMeta)));
  EXPECT_EQ(rows_RW.sizes(), (std::vector<int64_t>{5, format.row_bytes()}));
  EXPECT_EQ(decode(format, rows_RW, at::kBFloat16).sizes(), (std::vector<int64_t>{5, 100}));
}

INSTANTIATE_TEST_SUITE_P(
    Encodings, EveryEncoding,
    testing::Values(Encoding::kFloat32, Encoding::kBFloat16, Encoding::kInt8, Encoding::kFloat8),
    [](const auto& encoding) { return std::string(base::enum_name(encoding.param)); });

TEST(RowFormat, TheDtypeOfTheTeacherIsStoredBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const RowFormat format{*exact_encoding(dtype), 100};
    const at::Tensor hidden_RG = states(100).to(dtype);
    EXPECT_TRUE(at::equal(decode(format, encode(format, hidden_RG), dtype), hidden_RG));
  }
  EXPECT_FALSE(exact_encoding(at::kDouble).has_value());
}

TEST(RowFormat, AnInt8ValueIsWithinHalfAStepOfItsGroup) {
  const RowFormat format{Encoding::kInt8, 128};
  const at::Tensor hidden_RG = states(128);
  const at::Tensor error_RG = decode(format, encode(format, hidden_RG), at::kFloat).sub(hidden_RG).abs();
  const at::Tensor largest = hidden_RG.abs().view({9, 2, 64}).amax(-1, /*keepdim=*/true);
  // A step is largest / 127, and up to 2 parts in 128 more since its scale is rounded up.
  const at::Tensor limit = largest * (0.5 * (1 + 2.0 / 128) / 127);
  EXPECT_TRUE(error_RG.view({9, 2, 64}).le(limit).all().item<bool>());
}

TEST(RowFormat, AFloat8ValueIsWithinASixteenthOrASmallStepOfItsRow) {
  const RowFormat format{Encoding::kFloat8, 100};
  const at::Tensor hidden_RG = states(100);
  const at::Tensor error_RG = decode(format, encode(format, hidden_RG), at::kFloat).sub(hidden_RG).abs();
  // e4m3: 3 bits of mantissa; below 2^-6 steps of 2^-9, where the largest value of the row is 448.
  const at::Tensor step_R1 = hidden_RG.abs().amax(1, /*keepdim=*/true) / 448 * (1.0 / 512);
  EXPECT_TRUE(error_RG.le(at::maximum(hidden_RG.abs() / 16, step_R1) * 1.0001).all().item<bool>());
  EXPECT_GT(error_RG.max().item<float>(), 0);
}

// The bytes of a file hold 1, -2, 448 and 0.0625 in e4m3, and a scale of 0.5.
TEST(RowFormat, AFloat8RowOfAnEarlierVersionIsRead) {
  const std::vector<uint8_t> row = {0x38, 0xc0, 0x7e, 0x18, 0x00, 0x00, 0x00, 0x3f};
  const at::Tensor rows_RW = at::tensor(row, at::kByte).unsqueeze(0);
  const at::Tensor found_RG = decode({Encoding::kFloat8, 4}, rows_RW, at::kFloat);
  EXPECT_TRUE(at::equal(found_RG, at::tensor({0.5, -1.0, 224.0, 0.03125}, at::kFloat).unsqueeze(0))) << found_RG;
}

TEST(RowFormat, RowsOfAnotherWidthAreRefused) {
  const RowFormat format{Encoding::kBFloat16, 8};
  EXPECT_THROW(encode(format, at::zeros({2, 9})), c10::Error);
  EXPECT_THROW(decode(format, at::zeros({2, 15}, at::kByte), at::kFloat), c10::Error);
}

} // namespace
} // namespace distill::teacher_cache
