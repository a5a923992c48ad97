#include "trainer/models/ops/float8_kernel.h"

#include "trainer/models/ops/float8.cuh"
#include "trainer/models/ops/glu.cuh"

namespace distill::models {

namespace {

// Number of packs of its row that a thread holds in registers; the other packs of a longer row are computed twice.
constexpr int kHeld = 4;
constexpr int kMaxThreads = 256; // of a row: with 512 a row of 14336 or 16384 takes 6 to 14 % longer (H200)

template <typename T, int V>
struct PlainRow {
  using Values = Pack<T, V>;
  const T* x;

  __device__ PlainRow(const Float8RowsArgs& args, int64_t row)
      : x(static_cast<const T*>(args.x) + row * args.columns) {}
  __device__ __forceinline__ Values operator()(int64_t at) const {
    return load_pack<T, V>(x + at);
  }
};

template <typename T, int V>
struct ScaledRow {
  using Values = Pack<std::conditional_t<std::is_same_v<T, __half>, float, T>, V>; // exact: factors are powers of two
  const T* x;
  const float* factor;

  __device__ ScaledRow(const Float8RowsArgs& args, int64_t row)
      : x(static_cast<const T*>(args.x) + row * args.columns), factor(args.factor) {}
  __device__ __forceinline__ Values operator()(int64_t at) const {
    const Pack<T, V> loaded = load_pack<T, V>(x + at);
    const Pack<float, V> factors = load_pack<float, V>(factor + at);
    Values scaled;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      scaled.set(i, loaded[i] * factors.element[i]);
    }
    return scaled;
  }
};

template <GluActivation kActivation, typename T, int V>
struct GluRow {
  using Values = Pack<T, V>;
  const T* gate;
  const T* up;

  __device__ GluRow(const Float8RowsArgs& args, int64_t row)
      : gate(static_cast<const T*>(args.x) + row * 2 * args.columns), up(gate + args.columns) {}
  __device__ __forceinline__ Values operator()(int64_t at) const {
    return glu_pack<kActivation>(load_pack<T, V>(gate + at), load_pack<T, V>(up + at));
  }
};

template <typename T, int V>
using SwigluRow = GluRow<GluActivation::kSilu, T, V>;
template <typename T, int V>
using GegluRow = GluRow<GluActivation::kGelu, T, V>;

// Adds what a block's sampled rows lost to args.counts. All threads of the block call it.
__device__ void add_losses(const Float8RowsArgs& args, int64_t row, unsigned lost) {
  __shared__ unsigned sum;
  const bool first = threadIdx.x == 0 && threadIdx.y == 0;
  if (first) {
    sum = 0;
  }
  __syncthreads();
  if (lost != 0) {
    atomicAdd(&sum, lost);
  }
  __syncthreads();
  auto* counts = reinterpret_cast<unsigned long long*>(args.counts); // the only 64-bit integers with an atomic sum
  if (first && sum != 0) {
    atomicAdd(&counts[kFloat8Lost], sum);
  }
  if (first && row == 0) {
    const int64_t rows = ceil_div<int64_t>(args.rows, kFloat8SampledRows);
    atomicAdd(&counts[kFloat8Values], static_cast<unsigned long long>(rows * args.columns));
  }
}

template <typename T, int V, typename Row, bool kCounts>
__global__ __launch_bounds__(kMaxThreads) void float8_rows(const __grid_constant__ Float8RowsArgs args) {
  __shared__ RowScratch<float> shared;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool active = row < args.rows;
  const int packs = active ? static_cast<int>(args.columns / V) : 0;
  const Row values(args, row);
  typename Row::Values held[kHeld];
  float largest = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < packs) {
      held[j] = values(static_cast<int64_t>(p) * V);
      largest = larger(largest, largest_of(held[j]));
    }
  }
  const int first_again = threadIdx.x + kHeld * blockDim.x;
  for (int p = first_again; p < packs; p += blockDim.x) {
    largest = larger(largest, largest_of(values(static_cast<int64_t>(p) * V)));
  }
  largest = row_max(largest, shared);
  const float scale = args.power_of_two ? float8_power_of_two_scale(largest) : float8_scale(largest);
  if (active && threadIdx.x == 0) {
    args.scale[row] = scale;
  }
  const float inverse = 1.0F / scale;
  uint8_t* out = static_cast<uint8_t*>(args.values) + row * args.columns;
  const bool sampled = kCounts && row % kFloat8SampledRows == 0;
  unsigned lost = 0;
  const auto store = [&](int p, const typename Row::Values& pack) {
    if (sampled) {
      lost += lost_in(pack, inverse);
    }
    store_float8(out + static_cast<int64_t>(p) * V, pack, inverse);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < packs) {
      store(p, held[j]);
    }
  }
  for (int p = first_again; p < packs; p += blockDim.x) {
    store(p, values(static_cast<int64_t>(p) * V));
  }
  if constexpr (kCounts) {
    if (active && threadIdx.x == 0 && !isfinite(scale)) {
      atomicAdd(reinterpret_cast<unsigned long long*>(args.counts) + kFloat8BadRows, 1ULL);
    }
    if (sampled || blockDim.y > 1) { // the same for all threads of the block
      add_losses(args, row, lost);
    }
  }
}

template <template <typename, int> typename Row, bool kCounts>
const char* launch(const Float8RowsArgs& args, CUstream_st* stream) {
  const bool wide = whole_packs(args.type, args.columns) && aligned(args.x, args.values, args.factor);
  with_packs(args.type, wide, [&](auto tag, auto pack) {
    using T = typename decltype(tag)::type;
    const dim3 block = row_block_shape(args.columns / pack, kHeld, kMaxThreads);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.rows, block.y)));
    float8_rows<T, pack, Row<T, pack>, kCounts><<<grid, block, 0, stream>>>(args);
  });
  return launch_problem();
}

template <template <typename, int> typename Row>
const char* launch(const Float8RowsArgs& args, CUstream_st* stream) {
  return args.counts == nullptr ? launch<Row, false>(args, stream) : launch<Row, true>(args, stream);
}

} // namespace

const char* launch_float8_rows(const Float8RowsArgs& args, CUstream_st* stream) {
  return args.factor == nullptr ? launch<PlainRow>(args, stream) : launch<ScaledRow>(args, stream);
}

const char* launch_float8_swiglu(const Float8RowsArgs& args, CUstream_st* stream) {
  return launch<SwigluRow>(args, stream);
}

const char* launch_float8_geglu(const Float8RowsArgs& args, CUstream_st* stream) {
  return launch<GegluRow>(args, stream);
}

} // namespace distill::models
