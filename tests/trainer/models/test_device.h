#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

// The same tests run on the CPU (models_test) and on CUDA (models_gpu_test).
namespace distill::models {

at::Device test_device(); // defined by the program

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device().is_cuda() && !at::hasCUDA()) {
      GTEST_SKIP() << "needs a CUDA device";
    }
    at::manual_seed(7);
    at::set_num_threads(1); // tiny tensors: threads cost more than they save
  }

  static at::TensorOptions options(at::ScalarType dtype = at::kDouble) {
    return at::TensorOptions().dtype(dtype).device(test_device());
  }
  // Drawn on the CPU, so that every device sees the same numbers.
  static at::Tensor randn(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
    return at::randn(shape, at::kDouble).to(options(dtype));
  }
};

// Largest absolute difference, relative to the reference's largest value or `floor`, whichever is larger.
inline double relative_error(const at::Tensor& actual, const at::Tensor& expected, double floor = 1e-30) {
  EXPECT_EQ(actual.sizes(), expected.sizes());
  const at::Tensor reference = expected.to(at::kDouble);
  const double scale = std::max(floor, reference.abs().max().item<double>());
  const double error = (actual.to(at::kDouble) - reference).abs().max().item<double>() / scale;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

} // namespace distill::models
