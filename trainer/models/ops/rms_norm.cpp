#include "trainer/models/ops/rms_norm.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/ops/rms_norm_kernel.h"

namespace distill::models {
namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kLanes = 16; // number of partial sums: vectorises, and rounds less than one running sum
constexpr int64_t kColumnBlock = 64;
constexpr int64_t kSimulatedBackwardBlocks = 2 * device::kSimulatedMultiprocessors;

// Runs the CPU's code for the tensor's dtype; does nothing for a meta tensor.
#define DISTILL_DISPATCH(tensor, name, ...)                                                               \
  if (!(tensor).is_meta()) {                                                                              \
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, (tensor).scalar_type(), name, __VA_ARGS__); \
  }

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
void apply_row(const T* x, const T* weight, acc_t offset, acc_t rstd, T* y, int64_t size) {
  for (int64_t h = 0; h < size; ++h) {
    y[h] = static_cast<T>(static_cast<acc_t>(x[h]) * rstd * (static_cast<acc_t>(weight[h]) + offset));
  }
}

template <typename T>
void forward_cpu(
    const at::Tensor& x_NH, const at::Tensor& weight_H, double eps, double offset, at::Tensor& y_NH,
    at::Tensor& rstd_N) {
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
      apply_row(row, weight, static_cast<acc_t>(offset), rstd[n], y + n * size, size);
    }
  });
}

template <typename T>
void backward_input_cpu(
    const at::Tensor& dy_NH, const at::Tensor& x_NH, const at::Tensor& rstd_N, const at::Tensor& weight_H,
    double weight_offset, const T* dresidual, at::Tensor& dx_NH) {
  using acc_t = at::opmath_type<T>;
  const auto offset = static_cast<acc_t>(weight_offset);
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
        return static_cast<acc_t>(dy[h]) * (static_cast<acc_t>(weight[h]) + offset) * static_cast<acc_t>(x[h]);
      });
      const acc_t scale = dot * rstd[n] * rstd[n] * rstd[n] / static_cast<acc_t>(size);
      const T* residual = dresidual ? dresidual + n * size : nullptr;
      for (int64_t h = 0; h < size; ++h) {
        acc_t value = rstd[n] * (static_cast<acc_t>(weight[h]) + offset) * static_cast<acc_t>(dy[h]) -
            scale * static_cast<acc_t>(x[h]);
        if (residual) {
          value += static_cast<acc_t>(residual[h]);
        }
        dx[h] = static_cast<T>(value);
      }
    }
  });
}

// Columns are split over threads and rows are summed in order, so that any number of threads gives the same result.
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

void check_like_input(const at::Tensor& other, const at::Tensor& x) {
  TORCH_CHECK(
      other.sizes() == x.sizes() && other.scalar_type() == x.scalar_type(), "rms_norm: a tensor like the input, ",
      x.sizes(), " of dtype ", x.scalar_type(), ", is expected, found ", other.sizes(), " of dtype ",
      other.scalar_type());
}

at::ScalarType statistics_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor empty_rstd(const at::Tensor& x_NH) {
  return at::empty({x_NH.size(0)}, x_NH.options().dtype(statistics_dtype(x_NH)));
}

RmsNormResult empty_result(const at::Tensor& x_NH) {
  return {at::empty(x_NH.sizes(), x_NH.options()), empty_rstd(x_NH)};
}

Float8RmsNormResult empty_float8_result(const at::Tensor& x_NH) {
  return {empty_float8_rows(x_NH.size(0), x_NH.size(1), x_NH.options()), empty_rstd(x_NH)};
}

// Sets all arguments but the results and the residual.
RmsNormArgs kernel_args(const at::Tensor& x_NH, const at::Tensor& weight_H, double eps, double offset) {
  RmsNormArgs args{};
  args.x = x_NH.const_data_ptr();
  args.weight = weight_H.const_data_ptr();
  args.rows = x_NH.size(0);
  args.hidden = x_NH.size(1);
  args.x_stride = x_NH.stride(0);
  args.eps = eps;
  args.offset = offset;
  args.type = element_type(x_NH.scalar_type());
  return args;
}

void set_float8_result(RmsNormArgs& args, const Float8RmsNormResult& result) {
  args.y = result.y_NH.values_RC.mutable_data_ptr();
  args.float8_scale = result.y_NH.scale_R.mutable_data_ptr<float>();
  args.rstd = result.rstd_N.mutable_data_ptr();
}

void check_rstd(const at::Tensor& rstd, const at::Tensor& x, int64_t rows) {
  TORCH_CHECK(
      rstd.numel() == rows && rstd.is_contiguous() && rstd.scalar_type() == statistics_dtype(x), "rms_norm: rstd of ",
      rows, " contiguous elements of dtype ", statistics_dtype(x), " is expected, found ", rstd.sizes(), " of dtype ",
      rstd.scalar_type());
}

// Number of rows of partial sums.
int64_t backward_blocks(const RmsNormBackwardArgs& args, at::Device device) {
  if (device.is_meta()) {
    return kSimulatedBackwardBlocks;
  }
  const at::DeviceGuard guard(device);
  return rms_norm_backward_blocks(args);
}

// Fills in the rest of `args`, where dy, x, dx and their strides are set, and runs the kernel.
void backward_cuda(
    RmsNormBackwardArgs args, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight_H,
    at::Tensor& grad_H) {
  check_rstd(rstd, x, args.rows);
  const at::Tensor weight = weight_H.contiguous();
  args.weight = weight.const_data_ptr();
  args.rstd = rstd.const_data_ptr();
  args.hidden = weight.size(0);
  args.type = element_type(x.scalar_type());
  at::Tensor partials;
  if (grad_H.defined()) {
    TORCH_CHECK(
        grad_H.scalar_type() == statistics_dtype(x) && grad_H.sizes() == weight.sizes() && grad_H.is_contiguous(),
        "rms_norm: a contiguous gradient ", weight.sizes(), " of dtype ", statistics_dtype(x), " is expected, found ",
        grad_H.sizes(), " of dtype ", grad_H.scalar_type());
    partials = at::empty({backward_blocks(args, x.device()), args.hidden}, grad_H.options());
    args.partials = partials.mutable_data_ptr();
    args.grad = grad_H.mutable_data_ptr();
  }
  run_kernel("rms_norm_backward", launch_rms_norm_backward, args, x.device());
}

} // namespace

RmsNormResult rms_norm_forward(const at::Tensor& x_in, const at::Tensor& weight_in, double eps, double offset) {
  check_input(x_in, weight_in);
  const bool reads_strides = device::runs_on_cuda(x_in) && x_in.stride(1) == 1;
  const at::Tensor x_NH = reads_strides ? x_in : x_in.contiguous();
  const at::Tensor weight_H = weight_in.contiguous();
  RmsNormResult result = empty_result(x_NH);
  if (x_NH.numel() == 0) {
    return result;
  }
  if (device::runs_on_cuda(x_NH)) {
    RmsNormArgs args = kernel_args(x_NH, weight_H, eps, offset);
    args.y = result.y_NH.mutable_data_ptr();
    args.rstd = result.rstd_N.mutable_data_ptr();
    run_kernel("rms_norm_forward", launch_rms_norm_forward, args, x_NH.device());
    return result;
  }
  DISTILL_DISPATCH(x_NH, "rms_norm_forward", [&] {
    forward_cpu<scalar_t>(x_NH, weight_H, eps, offset, result.y_NH, result.rstd_N);
  });
  return result;
}

RmsNormResult add_rms_norm_forward_(
    at::Tensor& x_NH, const at::Tensor& residual_in, const at::Tensor& weight_in, double eps, double offset) {
  check_input(x_NH, weight_in);
  check_like_input(residual_in, x_NH);
  if (!device::runs_on_cuda(x_NH) || x_NH.numel() == 0) {
    return rms_norm_forward(x_NH.add_(residual_in), weight_in, eps, offset);
  }
  TORCH_CHECK(x_NH.is_contiguous(), "rms_norm: an input that is added to must be contiguous");
  const at::Tensor residual_NH = residual_in.contiguous();
  const at::Tensor weight_H = weight_in.contiguous();
  RmsNormResult result = empty_result(x_NH);
  RmsNormArgs args = kernel_args(x_NH, weight_H, eps, offset);
  args.residual = residual_NH.const_data_ptr();
  args.sum = x_NH.mutable_data_ptr();
  args.y = result.y_NH.mutable_data_ptr();
  args.rstd = result.rstd_N.mutable_data_ptr();
  run_kernel("add_rms_norm_forward", launch_rms_norm_forward, args, x_NH.device());
  return result;
}

Float8RmsNormResult rms_norm_forward_float8(
    const at::Tensor& x_in, const at::Tensor& weight_in, double eps, double offset) {
  if (!device::runs_on_cuda(x_in) || x_in.numel() == 0) {
    RmsNormResult norm = rms_norm_forward(x_in, weight_in, eps, offset);
    return {float8_rows(norm.y_NH), std::move(norm.rstd_N)};
  }
  check_input(x_in, weight_in);
  const at::Tensor x_NH = x_in.contiguous();
  const at::Tensor weight_H = weight_in.contiguous();
  Float8RmsNormResult result = empty_float8_result(x_NH);
  RmsNormArgs args = kernel_args(x_NH, weight_H, eps, offset);
  set_float8_result(args, result);
  run_kernel("rms_norm_forward_float8", launch_rms_norm_forward, args, x_NH.device());
  return result;
}

Float8RmsNormResult add_rms_norm_forward_float8_(
    at::Tensor& x_NH, const at::Tensor& residual_in, const at::Tensor& weight_in, double eps, double offset) {
  check_input(x_NH, weight_in);
  check_like_input(residual_in, x_NH);
  if (!device::runs_on_cuda(x_NH) || x_NH.numel() == 0) {
    return rms_norm_forward_float8(x_NH.add_(residual_in), weight_in, eps, offset);
  }
  TORCH_CHECK(x_NH.is_contiguous(), "rms_norm: an input that is added to must be contiguous");
  const at::Tensor residual_NH = residual_in.contiguous();
  const at::Tensor weight_H = weight_in.contiguous();
  Float8RmsNormResult result = empty_float8_result(x_NH);
  RmsNormArgs args = kernel_args(x_NH, weight_H, eps, offset);
  args.residual = residual_NH.const_data_ptr();
  args.sum = x_NH.mutable_data_ptr();
  set_float8_result(args, result);
  run_kernel("add_rms_norm_forward_float8", launch_rms_norm_forward, args, x_NH.device());
  return result;
}

at::Tensor rms_norm_apply(
    const at::Tensor& x_in, const at::Tensor& rstd_N, const at::Tensor& weight_in, double offset) {
  check_input(x_in, weight_in);
  check_rstd(rstd_N, x_in, x_in.size(0));
  const at::Tensor x_NH = x_in.contiguous();
  const at::Tensor weight_H = weight_in.contiguous();
  at::Tensor y_NH = at::empty_like(x_NH);
  if (x_NH.numel() == 0) {
    return y_NH;
  }
  if (device::runs_on_cuda(x_NH)) {
    RmsNormArgs args = kernel_args(x_NH, weight_H, /*eps=*/0, offset);
    args.y = y_NH.mutable_data_ptr();
    args.rstd = const_cast<void*>(rstd_N.const_data_ptr()); // this kernel only reads it
    run_kernel("rms_norm_apply", launch_rms_norm_apply, args, x_NH.device());
    return y_NH;
  }
  DISTILL_DISPATCH(x_NH, "rms_norm_apply", [&] {
    using acc_t = at::opmath_type<scalar_t>;
    const int64_t size = x_NH.size(1);
    const scalar_t* x = x_NH.const_data_ptr<scalar_t>();
    const scalar_t* weight = weight_H.const_data_ptr<scalar_t>();
    const acc_t* rstd = rstd_N.const_data_ptr<acc_t>();
    scalar_t* y = y_NH.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, x_NH.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        apply_row(x + n * size, weight, static_cast<acc_t>(offset), rstd[n], y + n * size, size);
      }
    });
  });
  return y_NH;
}

at::Tensor rms_norm_backward(
    const at::Tensor& dy_in, const at::Tensor& x_in, const at::Tensor& rstd_N, const at::Tensor& weight_H,
    at::Tensor& grad_H, const at::Tensor& dresidual_NH, double offset) {
  check_input(x_in, weight_H);
  check_like_input(dy_in, x_in);
  if (dresidual_NH.defined()) {
    check_like_input(dresidual_NH, x_in);
  }
  const at::Tensor x_NH = x_in.contiguous();
  const at::Tensor dy_NH = dy_in.contiguous();
  at::Tensor dx_NH = at::empty_like(x_NH);
  const at::Tensor dresidual = dresidual_NH.defined() ? dresidual_NH.contiguous() : at::Tensor();
  if (x_NH.numel() == 0) {
    return dx_NH;
  }
  if (device::runs_on_cuda(x_NH)) {
    RmsNormBackwardArgs args{};
    args.dy = dy_NH.const_data_ptr();
    args.x = x_NH.const_data_ptr();
    args.dresidual = dresidual.defined() ? dresidual.const_data_ptr() : nullptr;
    args.dx = dx_NH.mutable_data_ptr();
    args.rows = x_NH.size(0);
    args.inner = 1;
    args.dy_strides = args.x_strides = args.dx_strides = {x_NH.size(1), 0};
    args.offset = offset;
    backward_cuda(args, x_NH, rstd_N, weight_H, grad_H);
    return dx_NH;
  }
  DISTILL_DISPATCH(x_NH, "rms_norm_backward", [&] {
    backward_input_cpu<scalar_t>(
        dy_NH, x_NH, rstd_N, weight_H.contiguous(), offset,
        dresidual.defined() ? dresidual.const_data_ptr<scalar_t>() : nullptr, dx_NH);
    if (grad_H.defined()) {
      backward_weight_cpu<scalar_t>(dy_NH, x_NH, rstd_N, grad_H);
    }
  });
  return dx_NH;
}

void head_rms_norm_backward_(
    at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& grad,
    double offset) {
  TORCH_CHECK(x.dim() == 3, "rms_norm: heads [N, heads, D] are expected, found ", x.sizes());
  check_like_input(dy, x);
  const bool whole = weight.numel() != x.size(2);
  at::Tensor dy_NAD = whole ? dy.flatten(1).unsqueeze(1) : dy; // all heads as one
  const at::Tensor x_NAD = whole ? x.flatten(1).unsqueeze(1) : x;
  const int64_t size = x_NAD.size(2);
  if (device::runs_on_cuda(x_NAD) && x_NAD.numel() > 0) {
    TORCH_CHECK(
        dy_NAD.stride(2) == 1 && x_NAD.stride(2) == 1 && weight.numel() == size &&
            weight.scalar_type() == x_NAD.scalar_type(),
        "rms_norm: contiguous heads and a weight [", size, "] of dtype ", x_NAD.scalar_type(),
        " are expected, found strides ", dy_NAD.strides(), " and ", x_NAD.strides(), ", weight ", weight.sizes(),
        " of dtype ", weight.scalar_type());
    TORCH_CHECK(dy_NAD.is_alias_of(dy), "rms_norm: heads that follow one another are expected, found ", dy.strides());
    RmsNormBackwardArgs args{};
    args.dy = dy_NAD.const_data_ptr();
    args.x = x_NAD.const_data_ptr();
    args.dx = dy_NAD.mutable_data_ptr();
    args.rows = x_NAD.size(0) * x_NAD.size(1);
    args.inner = x_NAD.size(1);
    args.dy_strides = args.dx_strides = {dy_NAD.stride(0), dy_NAD.stride(1)};
    args.x_strides = {x_NAD.stride(0), x_NAD.stride(1)};
    args.offset = offset;
    backward_cuda(args, x_NAD, rstd, weight, grad);
    return;
  }
  const at::Tensor dx = rms_norm_backward(
      dy_NAD.reshape({-1, size}), x_NAD.reshape({-1, size}), rstd, weight, grad, /*dresidual_NH=*/{}, offset);
  dy_NAD.copy_(dx.view(x_NAD.sizes()));
}

} // namespace distill::models
