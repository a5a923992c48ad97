#include "trainer/models/ops/rms_norm_kernel.h"

#include <algorithm>

#include "trainer/models/ops/float8.cuh"

namespace distill::models {

namespace {

// Number of packs of its row that a thread holds in registers; the other packs of a longer row are read twice.
constexpr int kForwardHeld = 4;
constexpr int kBackwardHeld = 2;
constexpr int kBackwardThreadsPerMultiprocessor = 768; // also bounds a thread's registers, at 80

template <typename T, int V>
__device__ __forceinline__ Pack<T, V> scaled(
    const Pack<T, V>& x, acc_type<T> rstd, const Pack<T, V>& weight, acc_type<T> offset) {
  Pack<T, V> y;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    y.set(i, x[i] * rstd * (weight[i] + offset));
  }
  return y;
}

enum class ForwardMode {
  kPlain,
  kResidual,
  kApply
};

// Loads x; with a residual, the rounded sum of both, which it also stores.
template <typename T, int V, ForwardMode kMode>
__device__ __forceinline__ Pack<T, V> load_input(const T* x, const T* residual, T* sum, int64_t at) {
  Pack<T, V> value = load_pack<T, V>(x + at);
  if constexpr (kMode == ForwardMode::kResidual) {
    const Pack<T, V> other = load_pack<T, V>(residual + at);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      value.set(i, value[i] + other[i]);
    }
    store_pack(sum + at, value);
  }
  return value;
}

template <typename T, int V>
__device__ __forceinline__ acc_type<T> squares_of(const Pack<T, V>& x) {
  acc_type<T> sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sum += x[i] * x[i];
  }
  return sum;
}

// kFloat8: y is rounded to T and then to e4m3, with a scale for the row.
template <typename T, int V, ForwardMode kMode, bool kFloat8>
__global__ __launch_bounds__(kMaxRowThreads) void rms_norm_forward(const __grid_constant__ RmsNormArgs args) {
  using acc_t = acc_type<T>;
  __shared__ RowScratch<acc_t> shared;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool active = row < args.rows;
  const int packs = active ? static_cast<int>(args.hidden / V) : 0;
  const int64_t first = row * args.hidden;
  const acc_t offset = static_cast<acc_t>(args.offset);
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const T* residual = static_cast<const T*>(args.residual) + first;
  const T* weight = static_cast<const T*>(args.weight);
  T* sum = static_cast<T*>(args.sum) + first;
  T* y = static_cast<T*>(args.y) + first;
  acc_t* rstd_N = static_cast<acc_t*>(args.rstd);

  Pack<T, V> held[kForwardHeld];
#pragma unroll
  for (int j = 0; j < kForwardHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < packs) {
      held[j] = load_input<T, V, kMode>(x, residual, sum, p * V);
    }
  }
  const int first_again = threadIdx.x + kForwardHeld * blockDim.x;

  acc_t rstd = 0;
  if constexpr (kMode == ForwardMode::kApply) {
    rstd = active ? rstd_N[row] : acc_t(0);
  } else {
    acc_t squares = 0;
#pragma unroll
    for (int j = 0; j < kForwardHeld; ++j) {
      if (static_cast<int>(threadIdx.x + j * blockDim.x) < packs) {
        squares += squares_of(held[j]);
      }
    }
    for (int p = first_again; p < packs; p += blockDim.x) {
      squares += squares_of(load_input<T, V, kMode>(x, residual, sum, p * V));
    }
    squares = row_sum(squares, shared);
    rstd = acc_t(1) / sqrt(squares / static_cast<acc_t>(args.hidden) + static_cast<acc_t>(args.eps));
    if (active && threadIdx.x == 0) {
      rstd_N[row] = rstd;
    }
  }

  // Each thread reads back only values that it stored itself.
  const T* normalised = kMode == ForwardMode::kResidual ? sum : x;
  if constexpr (kFloat8) {
    __shared__ RowScratch<float> largest_shared;
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kForwardHeld; ++j) {
      const int p = threadIdx.x + j * blockDim.x;
      if (p < packs) {
        held[j] = scaled(held[j], rstd, load_pack<T, V>(weight + p * V), offset);
        largest = larger(largest, largest_of(held[j]));
      }
    }
    for (int p = first_again; p < packs; p += blockDim.x) {
      largest = larger(
          largest,
          largest_of(scaled(load_pack<T, V>(normalised + p * V), rstd, load_pack<T, V>(weight + p * V), offset)));
    }
    const float scale = float8_scale(row_max(largest, largest_shared));
    if (active && threadIdx.x == 0) {
      args.float8_scale[row] = scale;
    }
    uint8_t* y8 = static_cast<uint8_t*>(args.y) + first;
    const float inverse = 1.0F / scale;
#pragma unroll
    for (int j = 0; j < kForwardHeld; ++j) {
      const int p = threadIdx.x + j * blockDim.x;
      if (p < packs) {
        store_float8(y8 + p * V, held[j], inverse);
      }
    }
    for (int p = first_again; p < packs; p += blockDim.x) {
      store_float8(
          y8 + p * V, scaled(load_pack<T, V>(normalised + p * V), rstd, load_pack<T, V>(weight + p * V), offset),
          inverse);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kForwardHeld; ++j) {
      const int p = threadIdx.x + j * blockDim.x;
      if (p < packs) {
        store_pack(y + p * V, scaled(held[j], rstd, load_pack<T, V>(weight + p * V), offset));
      }
    }
    for (int p = first_again; p < packs; p += blockDim.x) {
      store_pack(y + p * V, scaled(load_pack<T, V>(normalised + p * V), rstd, load_pack<T, V>(weight + p * V), offset));
    }
  }
}

__device__ __forceinline__ int64_t row_offset(int64_t row, int64_t inner, const RowStrides& strides) {
  return inner == 1 ? row * strides.outer : row / inner * strides.outer + row % inner * strides.inner;
}

template <typename T, int V>
__device__ __forceinline__ acc_type<T> dot_of(
    const Pack<T, V>& dy, const Pack<T, V>& x, const Pack<T, V>& weight, acc_type<T> offset) {
  acc_type<T> sum = 0;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    sum += dy[i] * (weight[i] + offset) * x[i];
  }
  return sum;
}

// dx of one pack, and the terms of the weight's gradient added to `sums`.
template <typename T, int V>
__device__ __forceinline__ Pack<T, V> input_gradient(
    const Pack<T, V>& dy, const Pack<T, V>& x, const Pack<T, V>& weight, acc_type<T> offset,
    const Pack<T, V>& dresidual, acc_type<T> rstd, acc_type<T> scale, acc_type<T> (&sums)[V]) {
  Pack<T, V> dx;
#pragma unroll
  for (int i = 0; i < V; ++i) {
    dx.set(i, rstd * (weight[i] + offset) * dy[i] - scale * x[i] + dresidual[i]);
    sums[i] += dy[i] * (x[i] * rstd);
  }
  return dx;
}

// Stores a block's row of the workspace. If the block handles several rows at a time, their sums are added in order
// through shared memory; otherwise each thread's sums are complete.
template <typename T, int V>
__device__ __forceinline__ void store_partial(
    const acc_type<T> (&sums)[kBackwardHeld][V], acc_type<T>* partial, int64_t hidden, acc_type<T>* shared) {
  using acc_t = acc_type<T>;
  acc_t* out = blockDim.y == 1 ? partial : shared + threadIdx.y * hidden;
#pragma unroll
  for (int j = 0; j < kBackwardHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < static_cast<int>(hidden / V)) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        out[p * V + i] = sums[j][i];
      }
    }
  }
  if (blockDim.y > 1) {
    __syncthreads();
    for (int64_t h = threadIdx.y * blockDim.x + threadIdx.x; h < hidden; h += blockDim.x * blockDim.y) {
      acc_t total = 0;
      for (int y = 0; y < static_cast<int>(blockDim.y); ++y) {
        total += shared[y * hidden + h];
      }
      partial[h] = total;
    }
  }
}

// Persistent blocks: a thread keeps its columns of the weight and of the weight's gradient over all rows of its block.
// kLong: rows are longer than the block's threads can hold in registers.
template <typename T, int V, bool kLong>
__global__ __launch_bounds__(kLong ? kMaxRowThreads : kBackwardThreadsPerMultiprocessor) void rms_norm_backward(
    const __grid_constant__ RmsNormBackwardArgs args) {
  using acc_t = acc_type<T>;
  __shared__ RowScratch<acc_t> shared[2];
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  const int packs = static_cast<int>(args.hidden / V);
  const int first_again = threadIdx.x + kBackwardHeld * blockDim.x;
  const T* weight = static_cast<const T*>(args.weight);
  const acc_t offset = static_cast<acc_t>(args.offset);
  acc_t* partial = static_cast<acc_t*>(args.partials) + static_cast<int64_t>(blockIdx.x) * args.hidden;

  Pack<T, V> held_weight[kBackwardHeld];
  acc_t sums[kBackwardHeld][V] = {};
#pragma unroll
  for (int j = 0; j < kBackwardHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < packs) {
      held_weight[j] = load_pack<T, V>(weight + p * V);
    }
  }

  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.y;
  const int64_t first_base = static_cast<int64_t>(blockIdx.x) * blockDim.y;
  int parity = 0;
  // All threads of a block run the same number of rounds, since the sums need whole warps.
  for (int64_t base = first_base; base < args.rows; base += step, parity ^= 1) {
    const int64_t row = base + threadIdx.y;
    const bool active = row < args.rows;
    const int row_packs = active ? packs : 0;
    const T* dy = static_cast<const T*>(args.dy) + row_offset(row, args.inner, args.dy_strides);
    const T* x = static_cast<const T*>(args.x) + row_offset(row, args.inner, args.x_strides);
    const T* dresidual =
        args.dresidual == nullptr ? nullptr : static_cast<const T*>(args.dresidual) + row * args.hidden;
    T* dx = static_cast<T*>(args.dx) + row_offset(row, args.inner, args.dx_strides);
    const acc_t rstd = active ? static_cast<const acc_t*>(args.rstd)[row] : acc_t(0);

#pragma unroll
    for (int j = 0; j < kBackwardHeld; ++j) {
      keep_packed(held_weight[j]);
    }
    Pack<T, V> held_dy[kBackwardHeld], held_x[kBackwardHeld], held_residual[kBackwardHeld];
#pragma unroll
    for (int j = 0; j < kBackwardHeld; ++j) {
      const int p = threadIdx.x + j * blockDim.x;
      if (p < row_packs) {
        held_dy[j] = load_pack<T, V>(dy + p * V);
        held_x[j] = load_pack<T, V>(x + p * V);
        held_residual[j] = dresidual == nullptr ? Pack<T, V>{} : load_pack<T, V>(dresidual + p * V);
      }
    }
    acc_t dot = 0;
#pragma unroll
    for (int j = 0; j < kBackwardHeld; ++j) {
      if (static_cast<int>(threadIdx.x + j * blockDim.x) < row_packs) {
        dot += dot_of(held_dy[j], held_x[j], held_weight[j], offset);
      }
    }
    for (int p = first_again; kLong && p < row_packs; p += blockDim.x) {
      dot += dot_of(load_pack<T, V>(dy + p * V), load_pack<T, V>(x + p * V), load_pack<T, V>(weight + p * V), offset);
    }
    dot = row_sum(dot, shared[parity]);
#pragma unroll
    for (int j = 0; j < kBackwardHeld; ++j) {
      keep_packed(held_dy[j]);
      keep_packed(held_x[j]);
      keep_packed(held_weight[j]);
    }
    const acc_t scale = dot * rstd * rstd * rstd / static_cast<acc_t>(args.hidden);

#pragma unroll
    for (int j = 0; j < kBackwardHeld; ++j) {
      const int p = threadIdx.x + j * blockDim.x;
      if (p < row_packs) {
        store_pack(
            dx + p * V,
            input_gradient(held_dy[j], held_x[j], held_weight[j], offset, held_residual[j], rstd, scale, sums[j]));
      }
    }
    for (int p = first_again; kLong && p < row_packs; p += blockDim.x) {
      const bool add = args.partials != nullptr && base != first_base;
      acc_t terms[V];
#pragma unroll
      for (int i = 0; i < V; ++i) {
        terms[i] = add ? partial[p * V + i] : acc_t(0);
      }
      const Pack<T, V> residual = dresidual == nullptr ? Pack<T, V>{} : load_pack<T, V>(dresidual + p * V);
      const Pack<T, V> result = input_gradient(
          load_pack<T, V>(dy + p * V), load_pack<T, V>(x + p * V), load_pack<T, V>(weight + p * V), offset, residual,
          rstd, scale, terms);
      store_pack(dx + p * V, result);
      if (args.partials != nullptr) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          partial[p * V + i] = terms[i];
        }
      }
    }
  }

  if (args.partials == nullptr) {
    return;
  }
  store_partial<T, V>(sums, partial, args.hidden, reinterpret_cast<acc_t*>(dynamic_shared));
}

constexpr int kSumColumns = 32;
constexpr int kSumRows = 16;

// grad += sum of partials over their rows, in a fixed order.
template <typename acc_t>
__global__ __launch_bounds__(kSumColumns* kSumRows) void add_partials(
    const acc_t* partials_PH, acc_t* grad_H, int64_t count, int64_t hidden) {
  __shared__ acc_t shared[kSumRows][kSumColumns];
  const int64_t h = static_cast<int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  acc_t sum = 0;
  if (h < hidden) {
#pragma unroll 8
    for (int64_t p = threadIdx.y; p < count; p += kSumRows) {
      sum += partials_PH[p * hidden + h];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && h < hidden) {
    acc_t total = 0;
    for (int y = 0; y < kSumRows; ++y) {
      total += shared[y][threadIdx.x];
    }
    grad_H[h] += total;
  }
}

// Elements per pack.
int pack_size(const RmsNormArgs& args) {
  const bool wide = whole_packs(args.type, args.hidden) && whole_packs(args.type, args.x_stride) &&
      aligned(args.x, args.residual, args.weight, args.sum, args.y);
  return wide ? kAccessBytes / element_bytes(args.type) : 1;
}

int pack_size(const RmsNormBackwardArgs& args) {
  bool wide = whole_packs(args.type, args.hidden) && aligned(args.dy, args.x, args.dresidual, args.weight, args.dx);
  for (const RowStrides& strides : {args.dy_strides, args.x_strides, args.dx_strides}) {
    wide = wide && whole_packs(args.type, strides.outer) && (args.inner == 1 || whole_packs(args.type, strides.inner));
  }
  return wide ? kAccessBytes / element_bytes(args.type) : 1;
}

template <ForwardMode kMode, bool kFloat8>
const char* launch_forward(const RmsNormArgs& args, CUstream_st* stream) {
  const int pack = pack_size(args);
  const dim3 block = row_block_shape(args.hidden / pack, kForwardHeld);
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.rows, block.y)));
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (pack == 1) {
      rms_norm_forward<T, 1, kMode, kFloat8><<<grid, block, 0, stream>>>(args);
    } else {
      rms_norm_forward<T, kAccessBytes / sizeof(T), kMode, kFloat8><<<grid, block, 0, stream>>>(args);
    }
  });
  return launch_problem();
}

} // namespace

const char* launch_rms_norm_forward(const RmsNormArgs& args, CUstream_st* stream) {
  if (args.float8_scale != nullptr) {
    return args.residual == nullptr ? launch_forward<ForwardMode::kPlain, true>(args, stream)
                                    : launch_forward<ForwardMode::kResidual, true>(args, stream);
  }
  return args.residual == nullptr ? launch_forward<ForwardMode::kPlain, false>(args, stream)
                                  : launch_forward<ForwardMode::kResidual, false>(args, stream);
}

const char* launch_rms_norm_apply(const RmsNormArgs& args, CUstream_st* stream) {
  return launch_forward<ForwardMode::kApply, false>(args, stream);
}

int64_t rms_norm_backward_blocks(const RmsNormBackwardArgs& args) {
  int device = 0;
  int multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  const dim3 block = row_block_shape(args.hidden / pack_size(args), kBackwardHeld);
  const int64_t resident =
      static_cast<int64_t>(multiprocessors) * kBackwardThreadsPerMultiprocessor / (block.x * block.y);
  return std::min(resident, ceil_div<int64_t>(args.rows, block.y));
}

const char* launch_rms_norm_backward(const RmsNormBackwardArgs& args, CUstream_st* stream) {
  const int pack = pack_size(args);
  const dim3 block = row_block_shape(args.hidden / pack, kBackwardHeld);
  const int64_t blocks = rms_norm_backward_blocks(args);
  const dim3 grid(static_cast<unsigned>(blocks));
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using acc_t = acc_type<T>;
    const size_t shared = args.grad != nullptr && block.y > 1 ? block.y * args.hidden * sizeof(acc_t) : 0;
    constexpr int kPack = kAccessBytes / sizeof(T);
    const bool is_long = args.hidden / pack > static_cast<int64_t>(block.x) * kBackwardHeld;
    const auto kernel = pack == 1 ? (is_long ? rms_norm_backward<T, 1, true> : rms_norm_backward<T, 1, false>)
                                  : (is_long ? rms_norm_backward<T, kPack, true> : rms_norm_backward<T, kPack, false>);
    kernel<<<grid, block, shared, stream>>>(args);
    if (args.grad != nullptr) {
      add_partials<acc_t>
          <<<static_cast<unsigned>(ceil_div<int64_t>(args.hidden, kSumColumns)), dim3(kSumColumns, kSumRows), 0,
             stream>>>(static_cast<const acc_t*>(args.partials), static_cast<acc_t*>(args.grad), blocks, args.hidden);
    }
  });
  return launch_problem();
}

} // namespace distill::models
