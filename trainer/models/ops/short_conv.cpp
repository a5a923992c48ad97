#include "trainer/models/ops/short_conv.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/delta_math.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/ops/short_conv_kernel.h"

namespace distill::models {
namespace {

constexpr int64_t kChannelBlock = 64; // channels of a task

void check(const at::Tensor& x_NC, const at::Tensor& weight_C1W, const SequenceInfo& seq) {
  TORCH_CHECK(
      x_NC.dim() == 2 && x_NC.stride(1) == 1 && weight_C1W.dim() == 3 && weight_C1W.size(0) == x_NC.size(1) &&
          weight_C1W.size(1) == 1 && weight_C1W.size(2) <= kMaxConvWidth && weight_C1W.is_contiguous() &&
          weight_C1W.scalar_type() == x_NC.scalar_type(),
      "short_conv: rows of C contiguous channels and a weight [C, 1, at most ", kMaxConvWidth,
      "] of the same dtype are expected, found ", x_NC.sizes(), " and ", weight_C1W.sizes());
  TORCH_CHECK(
      seq.positions_N.numel() == x_NC.size(0), "short_conv: ", x_NC.size(0), " positions are expected, found ",
      seq.positions_N.numel());
}

// The channels of a task: their weights, tap by tap.
template <typename acc_t>
struct Taps {
  acc_t of[kMaxConvWidth][kChannelBlock];
};

template <typename T, typename acc_t = at::opmath_type<T>>
Taps<acc_t> read_taps(const T* weight, int64_t first, int64_t count, int64_t width) {
  Taps<acc_t> taps{};
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t j = 0; j < width; ++j) {
      taps.of[j][c] = static_cast<acc_t>(weight[(first + c) * width + j]);
    }
  }
  return taps;
}

// The sum before SiLU of the token in row n, of which `before` tokens are in its segment. `x`: its first channel.
template <typename T, typename acc_t>
void weighted_sum(
    const T* x, int64_t stride, int64_t before, int64_t count, int64_t width, const Taps<acc_t>& taps, acc_t* sum) {
  std::fill_n(sum, count, acc_t(0));
  for (int64_t i = std::min(before, width - 1); i >= 0; --i) {
    const T* row = x - i * stride;
    const acc_t* tap = taps.of[width - 1 - i];
    for (int64_t c = 0; c < count; ++c) {
      sum[c] += tap[c] * static_cast<acc_t>(row[c]);
    }
  }
}

template <typename T>
void forward_cpu(const at::Tensor& x_NC, const at::Tensor& weight, const SequenceInfo& seq, at::Tensor& y_NC) {
  using acc_t = at::opmath_type<T>;
  const int64_t tokens = x_NC.size(0), channels = x_NC.size(1), width = weight.size(2), stride = x_NC.stride(0);
  const T *x = x_NC.const_data_ptr<T>(), *weights = weight.const_data_ptr<T>();
  const auto* positions = seq.positions_N.const_data_ptr<int64_t>();
  T* y = y_NC.mutable_data_ptr<T>();
  at::parallel_for(0, (channels + kChannelBlock - 1) / kChannelBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kChannelBlock, count = std::min(kChannelBlock, channels - first);
      const Taps<acc_t> taps = read_taps(weights, first, count, width);
      acc_t sum[kChannelBlock];
      for (int64_t n = 0; n < tokens; ++n) {
        weighted_sum(x + n * stride + first, stride, positions[n], count, width, taps, sum);
        for (int64_t c = 0; c < count; ++c) {
          y[n * channels + first + c] = static_cast<T>(silu(sum[c]));
        }
      }
    }
  });
}

template <typename T>
void backward_cpu(
    const at::Tensor& dy_NC, const at::Tensor& x_NC, const at::Tensor& weight, const SequenceInfo& seq,
    at::Tensor& dx_NC, at::Tensor& grad_C1W) {
  using acc_t = at::opmath_type<T>;
  const int64_t channels = x_NC.size(1), width = weight.size(2), stride = x_NC.stride(0);
  const T *x = x_NC.const_data_ptr<T>(), *weights = weight.const_data_ptr<T>(), *dy = dy_NC.const_data_ptr<T>();
  const int64_t dx_stride = dx_NC.stride(0);
  T* dx = dx_NC.mutable_data_ptr<T>();
  auto* grad = grad_C1W.defined() ? grad_C1W.mutable_data_ptr<acc_t>() : nullptr;
  at::parallel_for(0, (channels + kChannelBlock - 1) / kChannelBlock, 1, [&](int64_t begin, int64_t end) {
    std::vector<acc_t> dsums; // of a segment: the gradient of the sums, [tokens, kChannelBlock]
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kChannelBlock, count = std::min(kChannelBlock, channels - first);
      const Taps<acc_t> taps = read_taps(weights, first, count, width);
      Taps<acc_t> grads{};
      for (size_t s = 0; s + 1 < seq.segments_host.size(); ++s) {
        const int64_t start = seq.segments_host[s], length = seq.segments_host[s + 1] - start;
        dsums.resize(static_cast<size_t>(length * kChannelBlock));
        for (int64_t t = 0; t < length; ++t) {
          const T* row = x + (start + t) * stride + first;
          acc_t* dsum = dsums.data() + t * kChannelBlock;
          weighted_sum(row, stride, t, count, width, taps, dsum);
          for (int64_t c = 0; c < count; ++c) {
            dsum[c] = static_cast<acc_t>(dy[(start + t) * channels + first + c]) * silu_slope(dsum[c]);
          }
          for (int64_t i = 0; i <= std::min(t, width - 1); ++i) {
            for (int64_t c = 0; c < count; ++c) {
              grads.of[width - 1 - i][c] += dsum[c] * static_cast<acc_t>(row[c - i * stride]);
            }
          }
        }
        acc_t sum[kChannelBlock];
        for (int64_t t = 0; t < length; ++t) {
          std::fill_n(sum, count, acc_t(0));
          for (int64_t i = 0; i < std::min(width, length - t); ++i) {
            const acc_t* dsum = dsums.data() + (t + i) * kChannelBlock;
            for (int64_t c = 0; c < count; ++c) {
              sum[c] += taps.of[width - 1 - i][c] * dsum[c];
            }
          }
          for (int64_t c = 0; c < count; ++c) {
            dx[(start + t) * dx_stride + first + c] = static_cast<T>(sum[c]);
          }
        }
      }
      for (int64_t c = 0; grad != nullptr && c < count; ++c) {
        for (int64_t j = 0; j < width; ++j) {
          grad[(first + c) * width + j] += grads.of[j][c];
        }
      }
    }
  });
}

ShortConvArgs kernel_args(const at::Tensor& x_NC, const at::Tensor& weight_C1W, const SequenceInfo& seq) {
  ShortConvArgs args{};
  args.x = x_NC.const_data_ptr();
  args.weight = weight_C1W.const_data_ptr();
  args.positions = seq.positions_N.const_data_ptr<int64_t>();
  args.tokens = x_NC.size(0);
  args.channels = x_NC.size(1);
  args.width = weight_C1W.size(2);
  args.x_stride = x_NC.stride(0);
  args.type = element_type(x_NC.scalar_type());
  return args;
}

} // namespace

at::Tensor short_conv_forward(const at::Tensor& x_NC, const at::Tensor& weight_C1W, const SequenceInfo& seq) {
  check(x_NC, weight_C1W, seq);
  at::Tensor y_NC = at::empty(x_NC.sizes(), x_NC.options());
  if (device::runs_on_cuda(x_NC)) {
    ShortConvArgs args = kernel_args(x_NC, weight_C1W, seq);
    args.y = y_NC.mutable_data_ptr();
    run_kernel("short_conv", launch_short_conv_forward, args, x_NC.device());
  } else if (!x_NC.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_NC.scalar_type(), "short_conv", [&] {
      forward_cpu<scalar_t>(x_NC, weight_C1W, seq, y_NC);
    });
  }
  return y_NC;
}

void short_conv_backward(
    const at::Tensor& dy_NC, const at::Tensor& x_NC, const at::Tensor& weight_C1W, const SequenceInfo& seq,
    at::Tensor& dx_NC, at::Tensor& grad_C1W, bool accumulate) {
  if (grad_C1W.defined() && !accumulate) {
    grad_C1W.zero_();
  }
  check(x_NC, weight_C1W, seq);
  TORCH_CHECK(
      dy_NC.is_contiguous() && dy_NC.sizes() == x_NC.sizes() && dx_NC.sizes() == x_NC.sizes() && dx_NC.stride(1) == 1,
      "short_conv: contiguous gradients ", x_NC.sizes(), " are expected, found ", dy_NC.sizes(), " and ",
      dx_NC.sizes());
  if (device::runs_on_cuda(x_NC)) {
    ShortConvArgs args = kernel_args(x_NC, weight_C1W, seq);
    args.dy = dy_NC.const_data_ptr();
    args.dx = dx_NC.mutable_data_ptr();
    args.dx_stride = dx_NC.stride(0);
    at::Tensor parts;
    if (grad_C1W.defined()) {
      const int64_t tiles = (args.tokens + kConvTile - 1) / kConvTile;
      parts = at::empty({tiles, weight_C1W.size(0), 1, args.width}, grad_C1W.options());
      args.parts = parts.mutable_data_ptr();
    }
    run_kernel("short_conv_backward", launch_short_conv_backward, args, x_NC.device());
    if (parts.defined()) {
      grad_C1W.add_(parts.sum(0));
    }
  } else if (!x_NC.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_NC.scalar_type(), "short_conv_backward", [&] {
      backward_cpu<scalar_t>(dy_NC, x_NC, weight_C1W, seq, dx_NC, grad_C1W);
    });
  }
}

} // namespace distill::models
