#include "trainer/models/ops/float8_kernel.h"

#include "trainer/models/ops/float8.cuh"
#include "trainer/models/ops/swiglu.cuh"

namespace distill::models {

namespace {

// Number of packs of its row that a thread holds in registers; the other packs of a longer row are computed twice.
constexpr int kHeld = 4;

template <typename T, int V>
struct PlainRow {
  const T* x;

  __device__ PlainRow(const Float8RowsArgs& args, int64_t row)
      : x(static_cast<const T*>(args.x) + row * args.columns) {}
  __device__ __forceinline__ Pack<T, V> operator()(int64_t at) const {
    return load_pack<T, V>(x + at);
  }
};

template <typename T, int V>
struct SwigluRow {
  const T* gate;
  const T* up;

  __device__ SwigluRow(const Float8RowsArgs& args, int64_t row)
      : gate(static_cast<const T*>(args.x) + row * 2 * args.columns), up(gate + args.columns) {}
  __device__ __forceinline__ Pack<T, V> operator()(int64_t at) const {
    return swiglu_pack(load_pack<T, V>(gate + at), load_pack<T, V>(up + at));
  }
};

template <typename T, int V, typename Row>
__global__ __launch_bounds__(kMaxRowThreads) void float8_rows(const __grid_constant__ Float8RowsArgs args) {
  __shared__ RowScratch<float> shared;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool active = row < args.rows;
  const int packs = active ? static_cast<int>(args.columns / V) : 0;
  const Row values(args, row);
  Pack<T, V> held[kHeld];
  float largest = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < packs) {
      held[j] = values(static_cast<int64_t>(p) * V);
      largest = fmaxf(largest, largest_of(held[j]));
    }
  }
  const int first_again = threadIdx.x + kHeld * blockDim.x;
  for (int p = first_again; p < packs; p += blockDim.x) {
    largest = fmaxf(largest, largest_of(values(static_cast<int64_t>(p) * V)));
  }
  const float scale = float8_scale(row_max(largest, shared));
  if (active && threadIdx.x == 0) {
    args.scale[row] = scale;
  }
  const float inverse = 1.0F / scale;
  uint8_t* out = static_cast<uint8_t*>(args.values) + row * args.columns;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < packs) {
      store_float8(out + static_cast<int64_t>(p) * V, held[j], inverse);
    }
  }
  for (int p = first_again; p < packs; p += blockDim.x) {
    store_float8(out + static_cast<int64_t>(p) * V, values(static_cast<int64_t>(p) * V), inverse);
  }
}

template <template <typename, int> typename Row>
const char* launch(const Float8RowsArgs& args, CUstream_st* stream) {
  const bool wide = whole_packs(args.type, args.columns) && aligned(args.x, args.values);
  const int pack = wide ? kAccessBytes / element_bytes(args.type) : 1;
  const dim3 block = row_block_shape(args.columns / pack, kHeld);
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.rows, block.y)));
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kPack = kAccessBytes / sizeof(T);
    if (wide) {
      float8_rows<T, kPack, Row<T, kPack>><<<grid, block, 0, stream>>>(args);
    } else {
      float8_rows<T, 1, Row<T, 1>><<<grid, block, 0, stream>>>(args);
    }
  });
  return launch_problem();
}

} // namespace

const char* launch_float8_rows(const Float8RowsArgs& args, CUstream_st* stream) {
  return launch<PlainRow>(args, stream);
}

const char* launch_float8_swiglu(const Float8RowsArgs& args, CUstream_st* stream) {
  return launch<SwigluRow>(args, stream);
}

} // namespace distill::models
