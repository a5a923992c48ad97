#include "trainer/models/ops/delta_rule.cuh"

namespace distill::models {

namespace {

constexpr int kForwardColumns = 32;
constexpr int kForwardTile = 16; // tokens whose q, k, v are in shared memory

// Lengths of q and k, and their product: a warp for each token and key head.
template <typename T>
__global__ __launch_bounds__(256) void delta_norms(const __grid_constant__ DeltaRuleArgs args) {
  using acc_t = acc_type<T>;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (256 / kWarp) + threadIdx.x / kWarp;
  if (row >= args.tokens * args.key_heads) {
    return;
  }
  acc_t q_squares = 0, k_squares = 0, product = 0;
  for (int64_t d = threadIdx.x % kWarp; d < args.key_dim; d += kWarp) {
    const acc_t q = key_element<T>(args, row / args.key_heads, row % args.key_heads, 0, d);
    const acc_t k = key_element<T>(args, row / args.key_heads, row % args.key_heads, 1, d);
    q_squares += q * q;
    k_squares += k * k;
    product += q * k;
  }
  q_squares = lane_sum(q_squares, kWarp);
  k_squares = lane_sum(k_squares, kWarp);
  product = lane_sum(product, kWarp);
  if (threadIdx.x % kWarp == 0) {
    acc_t* norms = static_cast<acc_t*>(args.norms) + row * 3;
    norms[0] = acc_t(1) / (sqrt(q_squares + acc_t(1e-6)) * sqrt(static_cast<acc_t>(args.key_dim)));
    norms[1] = acc_t(1) / sqrt(k_squares + acc_t(1e-6));
    norms[2] = product * norms[0] * norms[1];
  }
}

// A block has kForwardColumns columns of the state of one value head, over one segment.
template <typename T>
__global__ __launch_bounds__(kForwardColumns* kRowLanes) void delta_forward(
    const __grid_constant__ DeltaRuleArgs args) {
  using acc_t = acc_type<T>;
  constexpr int kThreads = kForwardColumns * kRowLanes;
  __shared__ alignas(32) Tile<acc_t, kForwardTile, kForwardColumns> tile;
  __shared__ acc_t outputs[kForwardTile][kForwardColumns], writes[kForwardTile][kForwardColumns];
  const Segment segment = segment_of(args, blockIdx.x / args.value_heads);
  const int64_t head = blockIdx.x % args.value_heads, first_column = static_cast<int64_t>(blockIdx.y) * kForwardColumns;
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes, column = static_cast<int>(threadIdx.x) / kRowLanes;
  const auto count_from = [&](int64_t begin) {
    return static_cast<int>(min(static_cast<int64_t>(kForwardTile), segment.length - begin));
  };
  acc_t state[kHeldRows] = {};
  Arriving<T, kForwardTile, kForwardColumns> next;
  if (segment.length > 0) {
    next.fetch(args, segment.first, count_from(0), head, first_column);
  }
  for (int64_t begin = 0; begin < segment.length; begin += kForwardTile) {
    const int count = count_from(begin);
    const int64_t n = segment.first + begin;
    next.place(tile);
    __syncthreads();
    if (begin + kForwardTile < segment.length) {
      next.fetch(args, n + kForwardTile, count_from(begin + kForwardTile), head, first_column);
    }
    for (int t = 0; t < count; ++t) {
      const HeldRows<acc_t> k(tile.k[t], lane), q(tile.q[t], lane);
      const acc_t a = tile.decay[t];
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        state[i] *= a;
      }
      const acc_t held = column_dot(k.at, state), read = column_dot(q.at, state);
      const acc_t written = tile.beta[t] * (tile.v[t][column] - held);
#pragma unroll
      for (int i = 0; i < kHeldRows; ++i) {
        state[i] += k.at[i] * written;
      }
      if (lane == 0) {
        writes[t][column] = written;
        outputs[t][column] = read + tile.overlap[t] * written;
      }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * kForwardColumns; i += kThreads) {
      const int64_t d = first_column + i % kForwardColumns;
      if (d < args.value_dim) {
        const int64_t place = head_place(args, n + i / kForwardColumns, head, d);
        static_cast<T*>(args.out)[place] = from_acc<T>(outputs[i / kForwardColumns][i % kForwardColumns]);
        static_cast<T*>(args.written)[place] = from_acc<T>(writes[i / kForwardColumns][i % kForwardColumns]);
      }
    }
  }
}

} // namespace

void launch_delta_norms(const DeltaRuleArgs& args, CUstream_st* stream) {
  with_type(args.type, [&](auto tag) {
    delta_norms<typename decltype(tag)::type><<<warps_for(args.tokens * args.key_heads), 256, 0, stream>>>(args);
  });
}

const char* launch_delta_rule_forward(const DeltaRuleArgs& args, CUstream_st* stream) {
  const dim3 grid(
      static_cast<unsigned>(args.segments * args.value_heads),
      static_cast<unsigned>(ceil_div<int64_t>(args.value_dim, kForwardColumns)));
  launch_delta_norms(args, stream);
  with_type(args.type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    delta_forward<T><<<grid, kForwardColumns * kRowLanes, 0, stream>>>(args);
  });
  return launch_problem();
}

} // namespace distill::models
