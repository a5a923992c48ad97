// Draws with replacement from each row's distribution, one block for each row: it sums the masses of segments of
// columns and finds, for each draw, the segment and the column in which a uniform number falls. All sums have one
// order, so that a row's draws do not depend on which other rows there are.
#include "losses/rows/cuda/capture/kernels.h"

#include "losses/rows/cuda/device_functions.cuh"
#include "losses/rows/philox.h"

namespace distill::losses {

namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;

template <typename T>
struct Shared {
  T max_of_warp[kWarps];
  double draw_before[kMaxSegments]; // at first each segment's own mass
  double p_of_segment[kMaxSegments];
  double draw_sum;
  double p_sum;
};

template <typename T>
struct Row {
  const CaptureRowArgs& args;
  const T* logits;
  SampleScales<T> scales;
  T max;

  __device__ __forceinline__ double mass(int64_t v) const {
    return static_cast<double>(row_exp2((logits[v] - max) * scales.draw));
  }
};

template <typename T>
__device__ T block_max(const T* logits, int64_t vocab, Shared<T>& shared) {
  T max = -std::numeric_limits<T>::infinity();
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    max = row_max(logits[v], max);
  }
  max = warp_max(max);
  if (threadIdx.x % kWarp == 0) {
    shared.max_of_warp[threadIdx.x / kWarp] = max;
  }
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) {
    max = row_max(shared.max_of_warp[w], max);
  }
  return max;
}

// Computes each segment's masses, a warp for a segment.
template <typename T>
__device__ void segment_masses(const Row<T>& row, Shared<T>& shared) {
  const int64_t columns = segment_columns(row.args.vocab);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t segment = threadIdx.x / kWarp; segment * columns < row.args.vocab; segment += kWarps) {
    double draw = 0;
    double p = 0;
    const int64_t end = min((segment + 1) * columns, row.args.vocab);
    for (int64_t v = segment * columns + lane; v < end; v += kWarp) {
      draw += row.mass(v);
      p += static_cast<double>(row_exp2((row.logits[v] - row.max) * row.scales.p));
    }
    draw = warp_sum(draw);
    p = warp_sum(p);
    if (lane == 0) {
      shared.draw_before[segment] = draw;
      shared.p_of_segment[segment] = p;
    }
  }
  __syncthreads();
}

// Returns the inclusive sums over the warp.
__device__ __forceinline__ double warp_scan(double value) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int offset = 1; offset < kWarp; offset *= 2) {
    const double other = __shfl_up_sync(kAllLanes, value, offset);
    value += lane >= offset ? other : 0.0;
  }
  return value;
}

// The first warp computes the masses before each segment: each of its lanes takes neighbouring segments.
template <typename T>
__device__ void running_sums(int segments, Shared<T>& shared) {
  if (threadIdx.x < kWarp) {
    const int each = (segments + kWarp - 1) / kWarp;
    const int begin = min(static_cast<int>(threadIdx.x) * each, segments);
    const int end = min(begin + each, segments);
    double draw = 0;
    double p = 0;
    for (int i = begin; i < end; ++i) {
      draw += shared.draw_before[i];
      p += shared.p_of_segment[i];
    }
    const double through = warp_scan(draw);
    double before = __shfl_up_sync(kAllLanes, through, 1);
    before = threadIdx.x == 0 ? 0.0 : before;
    for (int i = begin; i < end; ++i) {
      const double own = shared.draw_before[i];
      shared.draw_before[i] = before;
      before += own;
    }
    p = warp_sum(p);
    if (threadIdx.x == kWarp - 1) {
      shared.draw_sum = through;
      shared.p_sum = p;
    }
  }
  __syncthreads();
}

// Returns the last segment that begins at or before `target`.
template <typename T>
__device__ __forceinline__ int segment_at(double target, int segments, const Shared<T>& shared) {
  int low = 0;
  int high = segments;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (shared.draw_before[middle] <= target ? low : high) = middle;
  }
  return low;
}

// One warp finds the column in which `target` falls. Where rounding leaves it beyond the segment, it is the segment's
// last column with any probability.
template <typename T>
__device__ int64_t column_at(double target, int segment, const Row<T>& row, const Shared<T>& shared) {
  const int64_t columns = segment_columns(row.args.vocab);
  const int64_t begin = segment * columns;
  const int64_t end = min(begin + columns, row.args.vocab);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double before = shared.draw_before[segment];
  int64_t last = begin;
  for (int64_t base = begin; base < end; base += kWarp) {
    const double own = base + lane < end ? row.mass(base + lane) : 0.0;
    const double through = before + warp_scan(own);
    const unsigned reached = __ballot_sync(kAllLanes, own > 0 && through > target);
    if (reached != 0) {
      return base + __ffs(static_cast<int>(reached)) - 1;
    }
    const unsigned positive = __ballot_sync(kAllLanes, own > 0);
    last = positive != 0 ? base + kWarp - 1 - __clz(static_cast<int>(positive)) : last;
    before = __shfl_sync(kAllLanes, through, kWarp - 1);
  }
  return last;
}

// args: see CaptureRowArgs; block r takes row r.
template <typename T>
__global__ __launch_bounds__(kThreads) void samples(const __grid_constant__ CaptureRowArgs args) {
  __shared__ Shared<T> shared;
  const int64_t index = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + index * args.logits_stride;
  const Row<T> row{args, logits, sample_scales<T>(args), block_max(logits, args.vocab, shared)};
  const int64_t columns = segment_columns(args.vocab);
  const auto segments = static_cast<int>((args.vocab + columns - 1) / columns);
  segment_masses(row, shared);
  running_sums(segments, shared);
  for (int64_t s = threadIdx.x / kWarp; s < args.entries; s += kWarps) {
    const double u = philox_uniform(args.seed, static_cast<uint64_t>(args.keys[index]), static_cast<uint32_t>(s));
    const double target = u * shared.draw_sum;
    const int64_t id = column_at(target, segment_at(target, segments, shared), row, shared);
    if (threadIdx.x % kWarp == 0) {
      args.ids[index * args.ids_stride + s] = static_cast<int32_t>(id);
      args.weights[index * args.weights_stride + s] =
          sample_weight(logits[id] - row.max, row.scales, shared.p_sum, shared.draw_sum, args.entries);
    }
  }
}

} // namespace

const char* launch_samples(const CaptureRowArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.num_rows);
  if (args.logits_type == ElementType::kFloat64) {
    samples<double><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    samples<float><<<blocks, kThreads, 0, stream>>>(args);
  }
  return launch_error();
}

} // namespace distill::losses
