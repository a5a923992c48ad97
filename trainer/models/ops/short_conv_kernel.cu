#include "trainer/models/ops/short_conv_kernel.h"

#include "trainer/models/ops/delta_math.h"
#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 128; // of a block: one channel each
constexpr int kWidth = static_cast<int>(kMaxConvWidth);

// A thread's channel and its taps, taps[i] being that of the token i before.
template <typename T>
struct Channel {
  using acc_t = acc_type<T>;
  const ShortConvArgs& args;
  int64_t c;
  int width;
  acc_t taps[kWidth];

  __device__ __forceinline__ Channel(const ShortConvArgs& a, int64_t channel)
      : args(a), c(channel), width(static_cast<int>(a.width)) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      taps[i] = i < width ? to_acc(static_cast<const T*>(args.weight)[c * width + width - 1 - i]) : acc_t(0);
    }
  }

  __device__ __forceinline__ acc_t x(int64_t n) const {
    return to_acc(static_cast<const T*>(args.x)[n * args.x_stride + c]);
  }

  // The sum before SiLU, oldest token first.
  __device__ __forceinline__ acc_t sum(int64_t n) const {
    const int64_t before = args.positions[n];
    acc_t total = 0;
#pragma unroll
    for (int i = kWidth - 1; i >= 0; --i) {
      if (i < width && i <= before) {
        total += taps[i] * x(n - i);
      }
    }
    return total;
  }
};

template <typename T>
__global__ __launch_bounds__(kThreads) void short_conv_forward(const __grid_constant__ ShortConvArgs args) {
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= args.channels) {
    return;
  }
  const Channel<T> channel(args, c);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kConvTile;
  for (int64_t n = first; n < min(first + kConvTile, args.tokens); ++n) {
    static_cast<T*>(args.y)[n * args.channels + c] = from_acc<T>(silu(channel.sum(n)));
  }
}

// The gradient of a token needs those of the sums of the tokens after it: a thread walks backwards through its tile,
// and computes the sums of the tokens after the tile once more.
template <typename T>
__global__ __launch_bounds__(kThreads) void short_conv_backward(const __grid_constant__ ShortConvArgs args) {
  using acc_t = acc_type<T>;
  const int64_t c = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (c >= args.channels) {
    return;
  }
  const Channel<T> channel(args, c);
  const int width = channel.width;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kConvTile;
  const int64_t end = min(first + kConvTile, args.tokens);
  acc_t later[kWidth] = {}; // gradients of the sums of tokens n, n + 1, ...; 0 beyond the micro-batch
  acc_t grads[kWidth] = {};
  for (int64_t n = min(end + width - 1, args.tokens) - 1; n >= first; --n) {
#pragma unroll
    for (int i = kWidth - 1; i > 0; --i) {
      later[i] = later[i - 1];
    }
    later[0] = to_acc(static_cast<const T*>(args.dy)[n * args.channels + c]) * silu_slope(channel.sum(n));
    if (n >= end) {
      continue;
    }
    const int64_t position = args.positions[n];
    acc_t dx = 0;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < width && n + i < args.tokens && args.positions[n + i] == position + i) { // in the same segment
        dx += channel.taps[i] * later[i];
      }
      if (i < width && i <= position) {
        grads[i] += later[0] * channel.x(n - i);
      }
    }
    static_cast<T*>(args.dx)[n * args.dx_stride + c] = from_acc<T>(dx);
  }
  if (args.parts != nullptr) {
    acc_t* parts = static_cast<acc_t*>(args.parts) + (static_cast<int64_t>(blockIdx.x) * args.channels + c) * width;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (i < width) {
        parts[width - 1 - i] = grads[i];
      }
    }
  }
}

dim3 grid_of(const ShortConvArgs& args) {
  return dim3(
      static_cast<unsigned>(ceil_div<int64_t>(args.tokens, kConvTile)),
      static_cast<unsigned>(ceil_div<int64_t>(args.channels, kThreads)));
}

} // namespace

const char* launch_short_conv_forward(const ShortConvArgs& args, CUstream_st* stream) {
  with_type(args.type, [&](auto tag) {
    short_conv_forward<typename decltype(tag)::type><<<grid_of(args), kThreads, 0, stream>>>(args);
  });
  return launch_problem();
}

const char* launch_short_conv_backward(const ShortConvArgs& args, CUstream_st* stream) {
  with_type(args.type, [&](auto tag) {
    short_conv_backward<typename decltype(tag)::type><<<grid_of(args), kThreads, 0, stream>>>(args);
  });
  return launch_problem();
}

} // namespace distill::models
