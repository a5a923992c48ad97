// Products with fp32 results on a GPU against fp64, in every layout that the head has, and where cuBLASLt takes none.
#include "losses/products/fp32_product.h"

#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace distill::losses {
namespace {

struct Case {
  std::string name;
  int64_t out_rows, columns, sum; // M, N, K
  bool transposed_left, transposed_right; // contiguous columns instead of contiguous rows
  int64_t out_padding = 0;
  at::ScalarType dtype = at::kBFloat16;
};

at::Tensor operand(int64_t rows, int64_t columns, bool transposed, at::ScalarType dtype) {
  const at::Tensor whole =
      at::randn({transposed ? columns : rows, transposed ? rows : columns}, at::TensorOptions(at::kCUDA)).to(dtype);
  return transposed ? whole.t() : whole;
}

class Fp32Product : public ::testing::TestWithParam<Case> {};

TEST_P(Fp32Product, IsWithinRoundingOfFp64) {
  const Case& c = GetParam();
  at::manual_seed(3);
  const at::Tensor left = operand(c.out_rows, c.sum, c.transposed_left, c.dtype);
  const at::Tensor right = operand(c.sum, c.columns, c.transposed_right, c.dtype);
  const at::Tensor expected = left.to(at::kDouble).matmul(right.to(at::kDouble));
  at::Tensor out = at::full(
                       {c.out_rows, c.columns + c.out_padding}, std::numeric_limits<float>::quiet_NaN(),
                       at::TensorOptions(at::kCUDA))
                       .narrow(1, 0, c.columns);
  fp32_product(out, left, right, /*scale=*/0.5, /*accumulates=*/false); // the NaN are never read
  const double tolerance = 4e-6 * std::sqrt(static_cast<double>(c.sum)) * 4;
  EXPECT_LE((out.to(at::kDouble) - 0.5 * expected).abs().max().item<double>(), tolerance);
  const at::Tensor once = out.clone();
  fp32_product(out, left, right, /*scale=*/0.25, /*accumulates=*/true);
  EXPECT_LE((out.to(at::kDouble) - 0.75 * expected).abs().max().item<double>(), tolerance);
  at::Tensor again = at::empty_like(once);
  fp32_product(again, left, right, /*scale=*/0.5, /*accumulates=*/false);
  EXPECT_TRUE(at::equal(again, once));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Fp32Product,
    ::testing::Values(
        Case{"logits", 320, 32000, 2048, false, true}, Case{"padded_logits", 320, 50257, 512, false, true, 15},
        Case{"weight_gradient", 32000, 1024, 640, true, false},
        Case{"odd_weight_gradient", 50257, 576, 300, true, false},
        Case{"weight_gradient_of_an_odd_number_of_tiles", 20608, 2880, 640, true, false},
        Case{"both_rows", 300, 700, 513, false, false}, Case{"both_columns", 300, 704, 512, true, true},
        Case{"one_token", 1, 5003, 64, false, true}, Case{"one_column", 5003, 1, 64, true, false},
        Case{"one_term", 300, 200, 1, false, true}, Case{"fp16", 320, 32000, 512, false, true, 0, at::kHalf}),
    [](const auto& c) { return c.param.name; });

TEST(Fp32Product, OperandsWithoutContiguousRowsOrColumnsAreMultipliedToo) {
  const at::Tensor left = at::randn({64, 96, 2}, at::TensorOptions(at::kCUDA)).to(at::kBFloat16).select(2, 1);
  const at::Tensor right = operand(96, 128, false, at::kBFloat16);
  at::Tensor out = at::empty({64, 128}, at::TensorOptions(at::kCUDA));
  fp32_product(out, left, right, /*scale=*/1, /*accumulates=*/false);
  EXPECT_LE((out - left.to(at::kFloat).matmul(right.to(at::kFloat))).abs().max().item<double>(), 1e-3);
}

TEST(Fp32Product, OfNothing) {
  at::Tensor out = at::ones({4, 8}, at::TensorOptions(at::kCUDA));
  const at::TensorOptions bf16 = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  fp32_product(out, at::empty({4, 0}, bf16), at::empty({0, 8}, bf16), /*scale=*/1, /*accumulates=*/true);
  EXPECT_EQ(out.sum().item<double>(), 32);
}

} // namespace
} // namespace distill::losses
