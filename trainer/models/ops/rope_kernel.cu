#include "trainer/models/ops/rope_kernel.h"

#include <algorithm>

#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 128;

// Rotates one head of one token.
template <typename T>
struct Head {
  const T* in;
  T* out;
  const T* norm_weight;
  acc_type<T>* rstd;
};

template <typename T>
__device__ __forceinline__ Head<T> head_of(const RopeHeads& part, int64_t token, int64_t head) {
  Head<T> result;
  result.in = static_cast<const T*>(part.in) + token * part.in_token_stride + head * part.in_head_stride;
  result.out = static_cast<T*>(part.out) + token * part.out_token_stride + head * part.out_head_stride;
  result.norm_weight = static_cast<const T*>(part.norm_weight);
  result.rstd = static_cast<acc_type<T>*>(part.rstd) + token * part.heads + head;
  return result;
}

// The heads of q come first, then those of k.
template <typename T>
__device__ __forceinline__ Head<T> head_of(const RopeArgs& args, int64_t token, int64_t head) {
  return head < args.q.heads ? head_of<T>(args.q, token, head) : head_of<T>(args.k, token, head - args.q.heads);
}

// The factor of a head's elements: heads of q come first.
template <typename T>
__device__ __forceinline__ acc_type<T> scale_of(const RopeArgs& args, int64_t token, int64_t head) {
  return args.query_scale != nullptr && head < args.q.heads ? static_cast<acc_type<T>>(args.query_scale[token])
                                                            : acc_type<T>(1);
}

template <typename T, int V>
struct Halves {
  Pack<T, V> low;
  Pack<T, V> high;
};

template <typename T, int V>
__device__ __forceinline__ Halves<T, V> load_halves(const T* head, int64_t at, int64_t half) {
  return {load_pack<T, V>(head + at), load_pack<T, V>(head + half + at)};
}

// The pair with the number `pair` of a head: elements `low` and `low + gap`. The rotated pairs come first; the elements
// behind them are pairs of their two halves, which nothing rotates.
struct Pair {
  int64_t low;
  int64_t gap;
  bool turns;
};

__device__ __forceinline__ Pair pair_of(int64_t pair, int64_t rotary_dim, int64_t head_dim) {
  const int64_t rotated = rotary_dim / 2;
  return pair < rotated ? Pair{pair, rotated, true}
                        : Pair{rotary_dim + pair - rotated, (head_dim - rotary_dim) / 2, false};
}

// The cosines or sines of V pairs; `still` for pairs that nothing rotates.
template <int V>
__device__ __forceinline__ Pack<float, V> angles_of(const float* table, int64_t at, bool turns, float still) {
  Pack<float, V> angles;
  if (turns) {
    return load_pack<float, V>(table + at);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) {
    angles.set(i, still);
  }
  return angles;
}

// Tells whether launch_rope writes elements that it does not rotate: elsewhere, or scaled.
__host__ __device__ __forceinline__ bool moves_rest(const RopeArgs& args) {
  return args.q.in != args.q.out || args.query_scale != nullptr;
}

// A thread block has one token. threadIdx.x: packs of pairs of a head; threadIdx.y: heads. A thread reads its angles
// once for all heads. What is not rotated is left out where it is in its place.
template <typename T, int V>
__global__ __launch_bounds__(kThreads) void rope(const __grid_constant__ RopeArgs args) {
  using acc_t = acc_type<T>;
  const int64_t token = blockIdx.x;
  const int64_t rotated = args.rotary_dim / 2;
  const int64_t pairs = moves_rest(args) ? args.head_dim / 2 : rotated;
  const int64_t heads = args.q.heads + args.k.heads;
  const acc_t direction = args.inverse ? acc_t(-1) : acc_t(1);
  for (int64_t first = threadIdx.x * V; first < pairs; first += static_cast<int64_t>(blockDim.x) * V) {
    const Pair pair = pair_of(first, args.rotary_dim, args.head_dim);
    const Pack<float, V> cos = angles_of<V>(args.cos + token * rotated, first, pair.turns, 1.0F);
    const Pack<float, V> sin = angles_of<V>(args.sin + token * rotated, first, pair.turns, 0.0F);
    for (int64_t h = threadIdx.y; h < heads; h += blockDim.y) {
      const Head<T> head = head_of<T>(args, token, h);
      const acc_t scale = scale_of<T>(args, token, h);
      Halves<T, V> x = load_halves<T, V>(head.in, pair.low, pair.gap);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const acc_t c = cos[i];
        const acc_t s = direction * static_cast<acc_t>(sin[i]);
        const acc_t a = x.low[i];
        const acc_t b = x.high[i];
        x.low.set(i, (a * c - b * s) * scale);
        x.high.set(i, (b * c + a * s) * scale);
      }
      store_pack(head.out + pair.low, x.low);
      store_pack(head.out + pair.low + pair.gap, x.high);
    }
  }
}

// This kernel works like the one above, but threadIdx.x runs over a power of two of lanes of one warp, which sum a
// head's squares together. A head is read twice, the second time from the cache.
template <typename T, int V>
__global__ __launch_bounds__(kThreads) void norm_rope(const __grid_constant__ RopeArgs args) {
  using acc_t = acc_type<T>;
  const int64_t token = blockIdx.x;
  const int64_t half = args.head_dim / 2;
  const int64_t heads = args.q.heads + args.k.heads;
  const int64_t step = static_cast<int64_t>(blockDim.x) * V;
  const int64_t rotated = args.rotary_dim / 2; // pairs of elements
  const acc_t offset = static_cast<acc_t>(args.norm_offset);
  // All lanes of a warp run the same number of rounds, since sums are over lanes.
  for (int64_t base = 0; base < heads; base += blockDim.y) {
    const int64_t h = base + threadIdx.y;
    const int64_t end = h < heads ? half : 0;
    const Head<T> head = head_of<T>(args, token, h);
    acc_t squares = 0;
    for (int64_t at = threadIdx.x * V; at < end; at += step) {
      const Halves<T, V> x = load_halves<T, V>(head.in, at, half);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        squares += x.low[i] * x.low[i] + x.high[i] * x.high[i];
      }
    }
    squares = lane_sum(squares, static_cast<int>(blockDim.x));
    const acc_t rstd = acc_t(1) / sqrt(squares / static_cast<acc_t>(args.head_dim) + static_cast<acc_t>(args.eps));
    if (h < heads && threadIdx.x == 0) {
      *head.rstd = rstd;
    }
    const acc_t scale = scale_of<T>(args, token, h);
    for (int64_t first = threadIdx.x * V; first < end; first += step) {
      const Pair pair = pair_of(first, args.rotary_dim, args.head_dim);
      const Pack<float, V> cos = angles_of<V>(args.cos + token * rotated, first, pair.turns, 1.0F);
      const Pack<float, V> sin = angles_of<V>(args.sin + token * rotated, first, pair.turns, 0.0F);
      const Halves<T, V> weight = load_halves<T, V>(head.norm_weight, pair.low, pair.gap);
      Halves<T, V> x = load_halves<T, V>(head.in, pair.low, pair.gap);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const acc_t c = cos[i];
        const acc_t s = sin[i];
        const acc_t a = x.low[i] * rstd * (weight.low[i] + offset);
        const acc_t b = x.high[i] * rstd * (weight.high[i] + offset);
        x.low.set(i, (a * c - b * s) * scale);
        x.high.set(i, (b * c + a * s) * scale);
      }
      store_pack(head.out + pair.low, x.low);
      store_pack(head.out + pair.low + pair.gap, x.high);
    }
  }
}

bool wide(ElementType type, const RopeHeads& part) {
  if (part.heads == 0) {
    return true;
  }
  return aligned(part.in, part.out, part.norm_weight) && whole_packs(type, part.in_token_stride) &&
      whole_packs(type, part.in_head_stride) && whole_packs(type, part.out_token_stride) &&
      whole_packs(type, part.out_head_stride);
}

// Elements per pack. Both the rotated pairs and the others begin with whole packs.
int pack_size(const RopeArgs& args) {
  const bool all_wide = whole_packs(args.type, args.head_dim / 2) && whole_packs(args.type, args.rotary_dim / 2) &&
      wide(args.type, args.q) && wide(args.type, args.k) && aligned(args.cos, args.sin);
  return all_wide ? kAccessBytes / element_bytes(args.type) : 1;
}

} // namespace

const char* launch_rope(const RopeArgs& args, CUstream_st* stream) {
  const int pack = pack_size(args);
  const int64_t packs = (moves_rest(args) ? args.head_dim : args.rotary_dim) / 2 / pack;
  const int64_t heads = args.q.heads + args.k.heads;
  const int64_t width = std::min<int64_t>(packs, kThreads);
  // The number of heads at a time is the one that leaves the last round full.
  const int64_t rounds = ceil_div<int64_t>(heads, kThreads / width);
  const dim3 block(static_cast<unsigned>(width), static_cast<unsigned>(ceil_div(heads, rounds)));
  const dim3 grid(static_cast<unsigned>(args.tokens));
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (pack == 1) {
      rope<T, 1><<<grid, block, 0, stream>>>(args);
    } else {
      rope<T, kAccessBytes / sizeof(T)><<<grid, block, 0, stream>>>(args);
    }
  });
  return launch_problem();
}

const char* launch_norm_rope(const RopeArgs& args, CUstream_st* stream) {
  const int pack = pack_size(args);
  unsigned width = 1;
  while (width < kWarp && width < args.head_dim / 2 / pack) {
    width *= 2;
  }
  const dim3 block(width, kThreads / width);
  const dim3 grid(static_cast<unsigned>(args.tokens));
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (pack == 1) {
      norm_rope<T, 1><<<grid, block, 0, stream>>>(args);
    } else {
      norm_rope<T, kAccessBytes / sizeof(T)><<<grid, block, 0, stream>>>(args);
    }
  });
  return launch_problem();
}

} // namespace distill::models
