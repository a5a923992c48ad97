#include "trainer/models/ops/rms_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

namespace distill::models {
namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kLanes = 16; // partial sums: vectorises, and loses less than one running sum
constexpr int64_t kColumnBlock = 64;

#define DISTILL_DISPATCH(...) AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, __VA_ARGS__)

template <typename acc_t, typename F>
acc_t row_sum(int64_t size, const F& term) {
  std::array<acc_t, kLanes> lanes{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += term(i + l);
    }
  }
  for (; i < size; ++i) {
    lanes[i % kLanes] += term(i);
  }
  acc_t sum = 0;
  for (acc_t lane : lanes) {
    sum += lane;
  }
  return sum;
}

template <typename T, typename acc_t>
void apply_row(const T* x, const T* weight, acc_t rstd, T* y, int64_t size) {
  for (int64_t h = 0; h < size; ++h) {
    y[h] = static_cast<T>(static_cast<acc_t>(x[h]) * rstd * static_cast<acc_t>(weight[h]));
  }
}

template <typename T>
void forward_cpu(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps, at::Tensor& y_NH, at::Tensor& rstd_N) {
  using acc_t = at::opmath_type<T>;
  const int64_t size = x_NH.size(1);
  const T* x = x_NH.const_data_ptr<T>();
  const T* weight = weight_H.const_data_ptr<T>();
  T* y = y_NH.mutable_data_ptr<T>();
  acc_t* rstd = rstd_N.mutable_data_ptr<acc_t>();
  at::parallel_for(0, x_NH.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* row = x + n * size;
      const acc_t squares = row_sum<acc_t>(size, [row](int64_t h) {
        const acc_t value = static_cast<acc_t>(row[h]);
        return value * value;
      });
      rstd[n] = acc_t(1) / std::sqrt(squares / static_cast<acc_t>(size) + static_cast<acc_t>(eps));
      apply_row(row, weight, rstd[n], y + n * size, size);
    }
  });
}

template <typename T>
void backward_input_cpu(
    const at::Tensor& dy_NH, const at::Tensor& x_NH, const at::Tensor& rstd_N, const at::Tensor& weight_H,
    const T* dresidual, at::Tensor& dx_NH) {
  using acc_t = at::opmath_type<T>;
  const int64_t size = x_NH.size(1);
  const T* weight = weight_H.const_data_ptr<T>();
  const acc_t* rstd = rstd_N.const_data_ptr<acc_t>();
  const T* dy_all = dy_NH.const_data_ptr<T>();
  const T* x_all = x_NH.const_data_ptr<T>();
  T* dx_all = dx_NH.mutable_data_ptr<T>();
  at::parallel_for(0, x_NH.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* dy = dy_all + n * size;
      const T* x = x_all + n * size;
      T* dx = dx_all + n * size;
      const acc_t dot = row_sum<acc_t>(size, [&](int64_t h) {
        return static_cast<acc_t>(dy[h]) * static_cast<acc_t>(weight[h]) * static_cast<acc_t>(x[h]);
      });
      const acc_t scale = dot * rstd[n] * rstd[n] * rstd[n] / static_cast<acc_t>(size);
      const T* residual = dresidual ? dresidual + n * size : nullptr;
      for (int64_t h = 0; h < size; ++h) {
        acc_t value =
            rstd[n] * static_cast<acc_t>(weight[h]) * static_cast<acc_t>(dy[h]) - scale * static_cast<acc_t>(x[h]);
        if (residual) {
          value += static_cast<acc_t>(residual[h]);
        }
        dx[h] = static_cast<T>(value);
      }
    }
  });
}

// Columns are split over threads and rows summed in order: the same result on any number of threads.
template <typename T>
void backward_weight_cpu(
    const at::Tensor& dy_NH, const at::Tensor& x_NH, const at::Tensor& rstd_N, at::Tensor& grad_H) {
  using acc_t = at::opmath_type<T>;
  TORCH_CHECK(
      grad_H.scalar_type() == c10::CppTypeToScalarType<acc_t>::value, "rms_norm: a gradient of dtype ",
      c10::CppTypeToScalarType<acc_t>::value, " is expected, found ", grad_H.scalar_type());
  constexpr int64_t kRowBlock = 256;
  const int64_t size = x_NH.size(1);
  const int64_t rows = x_NH.size(0);
  const T* dy = dy_NH.const_data_ptr<T>();
  const T* x = x_NH.const_data_ptr<T>();
  const acc_t* rstd = rstd_N.const_data_ptr<acc_t>();
  acc_t* grad = grad_H.mutable_data_ptr<acc_t>();
  const int64_t blocks = (size + kColumnBlock - 1) / kColumnBlock;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kColumnBlock;
      const int64_t width = std::min(kColumnBlock, size - first);
      std::array<acc_t, kColumnBlock> total{};
      for (int64_t row_block = 0; row_block < rows; row_block += kRowBlock) {
        std::array<acc_t, kColumnBlock> partial{};
        for (int64_t n = row_block; n < std::min(rows, row_block + kRowBlock); ++n) {
          const T* dy_row = dy + n * size + first;
          const T* x_row = x + n * size + first;
          for (int64_t h = 0; h < width; ++h) {
            partial[h] += static_cast<acc_t>(dy_row[h]) * (static_cast<acc_t>(x_row[h]) * rstd[n]);
          }
        }
        for (int64_t h = 0; h < width; ++h) {
          total[h] += partial[h];
        }
      }
      for (int64_t h = 0; h < width; ++h) {
        grad[first + h] += total[h];
      }
    }
  });
}

void check_input(const at::Tensor& x_NH, const at::Tensor& weight_H) {
  TORCH_CHECK(
      x_NH.dim() == 2 && weight_H.dim() == 1 && x_NH.size(1) == weight_H.size(0),
      "rms_norm: input [N, H] and weight [H] are expected, found ", x_NH.sizes(), " and ", weight_H.sizes());
  TORCH_CHECK(
      x_NH.scalar_type() == weight_H.scalar_type(), "rms_norm: input and weight of one dtype are expected, found ",
      x_NH.scalar_type(), " and ", weight_H.scalar_type());
}

at::ScalarType statistics_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

} // namespace

RmsNormResult rms_norm_forward(const at::Tensor& x_in, const at::Tensor& weight_H, double eps) {
  check_input(x_in, weight_H);
  const at::Tensor x_NH = x_in.contiguous();
  if (x_NH.is_cuda()) {
    auto [y, rstd] = at::_fused_rms_norm(x_NH, {x_NH.size(1)}, weight_H, eps);
    return {y, rstd.view({-1})};
  }
  RmsNormResult result{at::empty_like(x_NH), at::empty({x_NH.size(0)}, x_NH.options().dtype(statistics_dtype(x_NH)))};
  DISTILL_DISPATCH(x_NH.scalar_type(), "rms_norm_forward", [&] {
    forward_cpu<scalar_t>(x_NH, weight_H.contiguous(), eps, result.y_NH, result.rstd_N);
  });
  return result;
}

at::Tensor rms_norm_apply(const at::Tensor& x_in, const at::Tensor& rstd_N, const at::Tensor& weight_H, double eps) {
  check_input(x_in, weight_H);
  const at::Tensor x_NH = x_in.contiguous();
  if (x_NH.is_cuda()) {
    return std::get<0>(at::_fused_rms_norm(x_NH, {x_NH.size(1)}, weight_H, eps));
  }
  at::Tensor y_NH = at::empty_like(x_NH);
  DISTILL_DISPATCH(x_NH.scalar_type(), "rms_norm_apply", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    const int64_t size = x_NH.size(1);
    const scalar_t* x = x_NH.const_data_ptr<scalar_t>();
    const scalar_t* weight = weight_H.const_data_ptr<scalar_t>();
    const acc_t* rstd = rstd_N.const_data_ptr<acc_t>();
    scalar_t* y = y_NH.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x_NH.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        apply_row(x + n * size, weight, rstd[n], y + n * size, size);
      }
    });
  });
  return y_NH;
}

at::Tensor rms_norm_backward(
    const at::Tensor& dy_in, const at::Tensor& x_in, const at::Tensor& rstd_N, const at::Tensor& weight_H,
    at::Tensor& grad_H, const at::Tensor& dresidual_NH) {
  check_input(x_in, weight_H);
  const at::Tensor x_NH = x_in.contiguous();
  const at::Tensor dy_NH = dy_in.contiguous();
  if (x_NH.is_cuda()) {
    // The weight's gradient of one call is rounded to the weight's dtype before it is added in fp32.
    auto [dx, dweight] = at::_fused_rms_norm_backward(
        dy_NH, x_NH, {x_NH.size(1)}, rstd_N.unsqueeze(1), weight_H, {true, grad_H.defined()});
    if (grad_H.defined()) {
      grad_H.add_(dweight);
    }
    return dresidual_NH.defined() ? dx.add_(dresidual_NH) : dx;
  }
  at::Tensor dx_NH = at::empty_like(x_NH);
  const at::Tensor dresidual = dresidual_NH.defined() ? dresidual_NH.contiguous() : at::Tensor();
  DISTILL_DISPATCH(x_NH.scalar_type(), "rms_norm_backward", [&] {
    backward_input_cpu<scalar_t>(
        dy_NH, x_NH, rstd_N, weight_H.contiguous(),
        dresidual.defined() ? dresidual.const_data_ptr<scalar_t>() : nullptr, dx_NH);
    if (grad_H.defined()) {
      backward_weight_cpu<scalar_t>(dy_NH, x_NH, rstd_N, grad_H);
    }
  });
  return dx_NH;
}

} // namespace distill::models
