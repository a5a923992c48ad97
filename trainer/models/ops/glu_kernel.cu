#include "trainer/models/ops/glu_kernel.h"

#include <type_traits>

#include "trainer/models/ops/glu.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int kPacksPerThread = 2;

// Position of a thread's pack: packs are numbered row by row, and those of a block are consecutive.
struct PackPosition {
  int64_t row;
  int64_t column; // of the first element
};

template <int V>
__device__ __forceinline__ PackPosition pack_position(int j, int64_t ffn) {
  const unsigned row_packs = static_cast<unsigned>(ffn / V);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads * kPacksPerThread);
  const int64_t first_row = first / row_packs;
  const unsigned pack = static_cast<unsigned>(first - first_row * row_packs) + j * kThreads + threadIdx.x;
  return {first_row + pack / row_packs, static_cast<int64_t>(pack % row_packs) * V};
}

template <GluActivation kActivation, typename T, int V>
__global__ __launch_bounds__(kThreads) void glu_forward(const __grid_constant__ GluArgs args) {
  Pack<T, V> gate[kPacksPerThread], up[kPacksPerThread];
#pragma unroll
  for (int j = 0; j < kPacksPerThread; ++j) {
    const PackPosition at = pack_position<V>(j, args.ffn);
    if (at.row < args.rows) {
      const T* row = static_cast<const T*>(args.gate_up) + at.row * 2 * args.ffn + at.column;
      gate[j] = load_pack<T, V>(row);
      up[j] = load_pack<T, V>(row + args.ffn);
    }
  }
#pragma unroll
  for (int j = 0; j < kPacksPerThread; ++j) {
    const PackPosition at = pack_position<V>(j, args.ffn);
    if (at.row < args.rows) {
      store_pack(static_cast<T*>(args.act) + at.row * args.ffn + at.column, glu_pack<kActivation>(gate[j], up[j]));
    }
  }
}

template <GluActivation kActivation, typename T, int V>
__global__ __launch_bounds__(kThreads) void glu_backward(const __grid_constant__ GluBackwardArgs args) {
  using acc_t = acc_type<T>;
  Pack<T, V> gate[kPacksPerThread], up[kPacksPerThread], dact[kPacksPerThread];
#pragma unroll
  for (int j = 0; j < kPacksPerThread; ++j) {
    const PackPosition at = pack_position<V>(j, args.ffn);
    if (at.row < args.rows) {
      const T* row = static_cast<const T*>(args.gate_up) + at.row * 2 * args.ffn + at.column;
      gate[j] = load_pack<T, V>(row);
      up[j] = load_pack<T, V>(row + args.ffn);
      dact[j] = load_pack<T, V>(static_cast<const T*>(args.dact) + at.row * args.ffn + at.column);
    }
  }
  // Stores come after all of this thread's loads: results may overwrite the inputs.
#pragma unroll
  for (int j = 0; j < kPacksPerThread; ++j) {
    const PackPosition at = pack_position<V>(j, args.ffn);
    if (at.row < args.rows) {
      Pack<T, V> act;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const acc_t g = gate[j][i];
        const acc_t u = up[j][i];
        const acc_t d = dact[j][i];
        const acc_t s = sigmoid<T>(sigmoid_argument<kActivation>(g));
        act.set(i, g * s * u);
        gate[j].set(i, d * u * s * (acc_t(1) + argument_slope<kActivation>(g) * (acc_t(1) - s)));
        up[j].set(i, d * (g * s));
      }
      T* row = static_cast<T*>(args.dgate_up) + at.row * 2 * args.ffn + at.column;
      store_pack(row, gate[j]);
      store_pack(row + args.ffn, up[j]);
      if (args.act != nullptr) {
        store_pack(static_cast<T*>(args.act) + at.row * args.ffn + at.column, act);
      }
    }
  }
}

dim3 grid_of(int64_t rows, int64_t ffn, int pack) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(rows * (ffn / pack), kThreads * kPacksPerThread)));
}

// Calls f with the activation as a constant.
template <typename F>
void with_activation(GluActivation activation, const F& f) {
  if (activation == GluActivation::kGelu) {
    f(std::integral_constant<GluActivation, GluActivation::kGelu>{});
  } else {
    f(std::integral_constant<GluActivation, GluActivation::kSilu>{});
  }
}

} // namespace

const char* launch_glu_forward(const GluArgs& args, CUstream_st* stream) {
  const bool wide = whole_packs(args.type, args.ffn) && aligned(args.gate_up, args.act);
  with_packs(args.type, wide, [&](auto tag, auto pack) {
    using T = typename decltype(tag)::type;
    constexpr int kPack = pack;
    with_activation(args.activation, [&](auto activation) {
      glu_forward<activation, T, kPack><<<grid_of(args.rows, args.ffn, kPack), kThreads, 0, stream>>>(args);
    });
  });
  return launch_problem();
}

const char* launch_glu_backward(const GluBackwardArgs& args, CUstream_st* stream) {
  const bool wide = whole_packs(args.type, args.ffn) && aligned(args.dact, args.gate_up, args.dgate_up, args.act);
  with_packs(args.type, wide, [&](auto tag, auto pack) {
    using T = typename decltype(tag)::type;
    constexpr int kPack = pack;
    with_activation(args.activation, [&](auto activation) {
      glu_backward<activation, T, kPack><<<grid_of(args.rows, args.ffn, kPack), kThreads, 0, stream>>>(args);
    });
  });
  return launch_problem();
}

} // namespace distill::models
