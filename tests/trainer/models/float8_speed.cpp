// Measures the gradients of weights at the shapes of Llama's blocks, 8192 tokens: a product in bf16 against one in
// float8 and what it needs.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>

#include "tests/trainer/models/gpu_time.h"
#include "trainer/models/ops/blas_lt.h"
#include "trainer/models/ops/float8.h"
#include "trainer/models/ops/linear.h"

namespace distill::models {
namespace {

constexpr int64_t kTokens = 8192;
constexpr int kSets = 4; // operands taken in turn, so that what is read does not stay in L2
constexpr int kRuns = 20;

struct Product {
  const char* name;
  int64_t outputs, inputs;
};
struct Model {
  const char* name;
  std::vector<Product> products; // of a block
};

class Float8Speed : public ::testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || !blas_lt_scales_rows({at::kCUDA, 0})) {
      GTEST_SKIP() << "needs a GPU of compute capability 9.0";
    }
  }

  static at::TensorOptions on_gpu(at::ScalarType dtype) {
    return at::TensorOptions().dtype(dtype).device(at::kCUDA);
  }
  static double milliseconds(const std::function<void(int)>& call) {
    int next = 0;
    return gpu_milliseconds([&] { call(next++ % kSets); }, kRuns);
  }
};

TEST_P(Float8Speed, GradientsOfWeights) {
  double all_bf16 = 0, all_float8 = 0;
  std::printf(
      "%-6s %-8s %16s | %10s %17s %17s %17s %17s %10s\n", GetParam().name, "", "bf16 ms, TFLOP/s", "float8 ms",
      "= x' ms, GB/s", "+ dy^T ms, GB/s", "+ product, TFLOP/s", "fast, TFLOP/s", "bf16 / 8");
  for (const auto& [name, outputs, inputs] : GetParam().products) {
    std::vector<at::Tensor> x, dy;
    std::vector<Float8Rows> rounded, turned, columns;
    const at::Tensor scale = at::full({outputs}, 0x1p-12, on_gpu(at::kFloat));
    for (int i = 0; i < kSets; ++i) {
      x.push_back(at::randn({kTokens, inputs}, on_gpu(at::kBFloat16)));
      dy.push_back(at::randn({kTokens, outputs}, on_gpu(at::kBFloat16)).mul_(1e-6));
      rounded.push_back(float8_rows(dy.back(), {.factor_C = scale}));
      turned.push_back({float8_transpose(rounded.back().values_RC), scale.reciprocal()});
      columns.push_back(float8_scaled_columns(x.back(), rounded.back().scale_R, kTokens));
    }
    at::Tensor grad = at::zeros({outputs, inputs}, on_gpu(at::kFloat));
    at::Tensor counts = at::zeros({kFloat8Counts}, on_gpu(at::kLong));
    const auto product = [&](bool fast) {
      return milliseconds([&](int i) {
        blas_lt_float8_product(
            {turned[i].values_RC, turned[i].scale_R}, {columns[i].values_RC, columns[i].scale_R}, grad,
            /*accumulate=*/false, fast);
      });
    };
    const double bf16 = milliseconds([&](int i) { linear_backward_weight(dy[i], x[i], grad, /*accumulate=*/false); });
    const double float8 = milliseconds(
        [&](int i) { float8_linear_backward_weight(rounded[i], scale, x[i], grad, {.accumulate = false}, counts); });
    const double rounding =
        milliseconds([&](int i) { float8_scaled_columns(x[i], rounded[i].scale_R, kTokens, counts); });
    const double turning = milliseconds([&](int i) { float8_transpose(rounded[i].values_RC); });
    const double slow = product(false), fast = product(true);
    const double flops = 2.0 * kTokens * static_cast<double>(outputs * inputs);
    const auto speed = [](double amount, double ms, double unit) { return amount / ms * 1e3 / unit; };
    std::printf(
        "%-6s %-8s %9.3f %6.0f | %10.3f %10.3f %6.0f %10.3f %6.0f %10.3f %6.0f %10.3f %6.0f %10.2f\n", GetParam().name,
        name, bf16, speed(flops, bf16, 1e12), float8, rounding,
        speed(5.0 * kTokens * static_cast<double>(inputs), rounding, 1e9), turning,
        speed(2.0 * kTokens * static_cast<double>(outputs), turning, 1e9), slow, speed(flops, slow, 1e12), fast,
        speed(flops, fast, 1e12), bf16 / float8);
    std::fflush(stdout);
    all_bf16 += bf16;
    all_float8 += float8;
  }
  std::printf("%-6s %-8s %9.3f        | %10.3f\n", GetParam().name, "block", all_bf16, all_float8);
  EXPECT_LT(all_float8, all_bf16) << "products in float8 take longer than those in bf16";
}

INSTANTIATE_TEST_SUITE_P(
    Llama, Float8Speed,
    ::testing::Values(
        Model{"1B", {{"qkv", 3072, 2048}, {"o", 2048, 2048}, {"gate_up", 16384, 2048}, {"down", 2048, 8192}}},
        Model{"8B", {{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}}}),
    [](const auto& shape) { return std::string(shape.param.name); });

} // namespace
} // namespace distill::models
