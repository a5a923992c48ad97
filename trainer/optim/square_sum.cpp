#include "trainer/optim/square_sum.h"

#include <ATen/Parallel.h>

#include <array>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/optim/square_sum_kernel.h"

namespace distill::optim {
namespace {

constexpr int64_t kLanes = 8; // running sums in parallel, which vectorise, and round less than a single one
// Elements of the parts that threads sum separately. The number of parts, and so the order of the sum, depends on the
// tensor's size alone.
constexpr int64_t kPart = 1 << 16;

template <typename T>
double square_sum_of(const T* values, int64_t count) {
  std::array<double, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<float>(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) {
    const double value = static_cast<float>(values[i]);
    lanes[i % kLanes] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

template <typename T>
double square_sum_cpu(const at::Tensor& tensor) {
  const T* values = tensor.const_data_ptr<T>();
  const int64_t count = tensor.numel();
  std::vector<double> parts(static_cast<size_t>((count + kPart - 1) / kPart));
  at::parallel_for(0, static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      parts[part] = square_sum_of(values + part * kPart, std::min(kPart, count - part * kPart));
    }
  });
  double sum = 0;
  for (const double part : parts) {
    sum += part;
  }
  return sum;
}

at::Tensor square_sum_cuda(const std::vector<at::Tensor>& tensors) {
  const auto count = static_cast<int64_t>(tensors.size());
  at::Tensor partials = at::empty({count, kSquareSumParts}, tensors.front().options().dtype(at::kDouble));
  for (int64_t i = 0; i < count; ++i) {
    if (!partials.is_meta()) {
      const SquareSumArgs args{
          tensors[i].const_data_ptr(), tensors[i].scalar_type() == at::kBFloat16,
          partials[i].mutable_data_ptr<double>(), tensors[i].numel()};
      models::run_kernel("square_sum", launch_square_sum, args, partials.device());
    }
  }
  return partials.sum().reshape({1});
}

} // namespace

at::Tensor square_sum(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(!tensors.empty(), "square_sum: at least one tensor is expected");
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK(
        (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16) && tensor.is_contiguous() &&
            tensor.device() == tensors.front().device(),
        "square_sum: contiguous fp32 or bf16 tensors on one device are expected, found ", tensor.scalar_type(), " on ",
        tensor.device(), " with strides ", tensor.strides());
  }
  if (device::runs_on_cuda(tensors.front())) {
    return square_sum_cuda(tensors);
  }
  at::Tensor total = at::zeros({1}, tensors.front().options().dtype(at::kDouble));
  if (!total.is_meta()) {
    for (const at::Tensor& tensor : tensors) {
      *total.mutable_data_ptr<double>() +=
          tensor.scalar_type() == at::kBFloat16 ? square_sum_cpu<at::BFloat16>(tensor) : square_sum_cpu<float>(tensor);
    }
  }
  return total;
}

} // namespace distill::optim
