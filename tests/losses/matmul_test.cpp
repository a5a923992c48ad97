#include "losses/matmul.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/losses/device.h"

namespace distill::losses::testing {
namespace {

// A matrix whose rows or columns are contiguous, `padding` elements apart beyond their length.
at::Tensor matrix(int64_t rows, int64_t columns, bool by_rows, int64_t padding, at::ScalarType type) {
  const auto on = at::TensorOptions(type).device(test_device());
  return by_rows ? at::randn({rows, columns + padding}, on).narrow(1, 0, columns)
                 : at::randn({columns, rows + padding}, on).narrow(1, 0, rows).t();
}

double error(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

TEST(Matmul, EqualsFp64ForEveryLayoutAndDtype) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat, at::kDouble}) {
    if (type == at::kBFloat16 && test_device() == at::kCPU) {
      continue; // the CPU's callers convert
    }
    for (const bool a_by_rows : {true, false}) {
      for (const bool b_by_rows : {true, false}) {
        for (const auto& [m, n, k] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
                 {128, 256, 64}, {100, 1000, 72}, {1, 40, 16}, {40, 1, 16}, {33, 17, 1}, {5, 7, 3}}) {
          const at::Tensor a = matrix(m, k, a_by_rows, 8, type);
          const at::Tensor b = matrix(k, n, b_by_rows, 16, type);
          const at::Tensor product = at::mm(a.to(at::kDouble), b.to(at::kDouble));
          for (const bool wide : {false, true}) {
            const at::ScalarType out_type = wide && type == at::kBFloat16 ? at::kFloat : type;
            const double bound = out_type == at::kBFloat16 ? 4e-3 : (out_type == at::kFloat ? 2e-6 : 1e-14);
            const at::Tensor nothing_read = matrix(m, n, true, 24, out_type).fill_(std::nan(""));
            matrix_product_out(nothing_read, a, b, 0.5);
            EXPECT_LT(error(nothing_read, 0.5 * product), bound) << m << " " << n << " " << k;
            const at::Tensor added = matrix(m, n, true, 8, out_type);
            const at::Tensor sum = 2 * product + 3 * added.to(at::kDouble);
            const at::Tensor out = matrix(m, n, true, 24, out_type);
            matrix_product_out(out, a, b, 2, added, 3);
            EXPECT_LT(error(out, sum), bound);
            matrix_product_out(added, a, b, 2, added, 3); // in place
            EXPECT_LT(error(added, sum), bound);
          }
          EXPECT_LT(error(matrix_product(a, b), product), type == at::kBFloat16 ? 4e-3 : 2e-6);
        }
      }
    }
  }
}

TEST(Matmul, RepeatsBitForBitWhileKernelsAreTriedOut) {
  at::manual_seed(3);
  const at::ScalarType type = test_device() == at::kCPU ? at::kFloat : at::kBFloat16;
  const at::Tensor a = matrix(512, 256, true, 0, type);
  const at::Tensor b = matrix(256, 4096, false, 0, type);
  const at::Tensor first = matrix_product(a, b);
  for (int call = 0; call < 40; ++call) {
    EXPECT_TRUE(at::equal(matrix_product(a, b), first)) << call;
  }
}

} // namespace
} // namespace distill::losses::testing
