#include "trainer/models/ops/gated_norm_kernel.h"

#include "trainer/models/ops/delta_math.h"
#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kWarps = 8;
constexpr int kHeld = static_cast<int>(kMaxGatedHead) / kWarp; // elements of a head that a lane holds at most

// A head of a token, its elements spread over the lanes of a warp.
template <typename T>
struct Head {
  using acc_t = acc_type<T>;
  acc_t x[kHeld];
  acc_t rstd;
  int held;

  __device__ __forceinline__ Head(const GatedNormArgs& args, int64_t row) {
    held = static_cast<int>(ceil_div<int64_t>(args.dim, kWarp));
    acc_t squares = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int d = i * kWarp + static_cast<int>(threadIdx.x);
      x[i] = d < args.dim ? to_acc(static_cast<const T*>(args.x)[row * args.dim + d]) : acc_t(0);
      squares += x[i] * x[i];
    }
    squares = lane_sum(squares, kWarp);
    rstd = acc_t(1) / sqrt(squares / static_cast<acc_t>(args.dim) + static_cast<acc_t>(args.eps));
  }
};

template <typename T>
__global__ __launch_bounds__(kWarp* kWarps) void gated_norm_forward(const __grid_constant__ GatedNormArgs args) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= args.tokens * args.heads) {
    return;
  }
  const int64_t token = row / args.heads, head = row % args.heads;
  const Head<T> own(args, row);
  const T* z = static_cast<const T*>(args.z) + token * args.z_stride + head * args.dim;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int d = i * kWarp + static_cast<int>(threadIdx.x);
    if (i < own.held && d < args.dim) {
      const auto weight = to_acc(static_cast<const T*>(args.weight)[d]);
      static_cast<T*>(args.y)[row * args.dim + d] = from_acc<T>(own.x[i] * own.rstd * weight * silu(to_acc(z[d])));
    }
  }
}

// A warp has one head of kGatedNormTokens tokens, whose part of the weight's gradient it sums in their order.
template <typename T>
__global__ __launch_bounds__(kWarp* kWarps) void gated_norm_backward(const __grid_constant__ GatedNormArgs args) {
  using acc_t = acc_type<T>;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  const int64_t tile = task / args.heads, head = task % args.heads;
  const int64_t first = tile * kGatedNormTokens;
  if (first >= args.tokens) {
    return;
  }
  acc_t grads[kHeld] = {};
  for (int64_t token = first; token < min(first + kGatedNormTokens, args.tokens); ++token) {
    const int64_t row = token * args.heads + head;
    const Head<T> own(args, row);
    const T* z_row = static_cast<const T*>(args.z) + token * args.z_stride + head * args.dim;
    T* dz_row = static_cast<T*>(args.dz) + token * args.dz_stride + head * args.dim;
    acc_t dnormed[kHeld]; // gradient of x * rstd
    acc_t dot = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int d = i * kWarp + static_cast<int>(threadIdx.x);
      dnormed[i] = 0;
      if (i < own.held && d < args.dim) {
        const acc_t dy = to_acc(static_cast<const T*>(args.dy)[row * args.dim + d]), z = to_acc(z_row[d]);
        const acc_t weight = to_acc(static_cast<const T*>(args.weight)[d]), normed = own.x[i] * own.rstd;
        const acc_t gated = dy * silu(z);
        grads[i] += gated * normed;
        dz_row[d] = from_acc<T>(dy * normed * weight * silu_slope(z));
        dnormed[i] = gated * weight;
        dot += dnormed[i] * own.x[i];
      }
    }
    dot = lane_sum(dot, kWarp);
    const acc_t scale = dot * own.rstd * own.rstd * own.rstd / static_cast<acc_t>(args.dim);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int d = i * kWarp + static_cast<int>(threadIdx.x);
      if (i < own.held && d < args.dim) {
        static_cast<T*>(args.dx)[row * args.dim + d] = from_acc<T>(dnormed[i] * own.rstd - scale * own.x[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int d = i * kWarp + static_cast<int>(threadIdx.x);
    if (d < args.dim) {
      static_cast<acc_t*>(args.parts)[task * args.dim + d] = grads[i];
    }
  }
}

} // namespace

const char* launch_gated_norm_forward(const GatedNormArgs& args, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.tokens * args.heads, kWarps)));
  with_type(args.type, [&](auto tag) {
    gated_norm_forward<typename decltype(tag)::type><<<grid, dim3(kWarp, kWarps), 0, stream>>>(args);
  });
  return launch_problem();
}

const char* launch_gated_norm_backward(const GatedNormArgs& args, CUstream_st* stream) {
  const int64_t tasks = ceil_div<int64_t>(args.tokens, kGatedNormTokens) * args.heads;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(tasks, kWarps)));
  with_type(args.type, [&](auto tag) {
    gated_norm_backward<typename decltype(tag)::type><<<grid, dim3(kWarp, kWarps), 0, stream>>>(args);
  });
  return launch_problem();
}

} // namespace distill::models
