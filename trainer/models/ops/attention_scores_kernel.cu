#include "trainer/models/ops/attention_scores_kernel.h"

#include <algorithm>

#include "trainer/models/ops/device.cuh"

namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

template <typename T>
struct Row {
  using acc_t = acc_type<T>;
  acc_t* scores;
  T* probs;
  acc_t* dprobs;
  T* dscores;
  int64_t first; // key that the query sees
  int64_t end; // behind the last one
};

template <typename T>
__device__ __forceinline__ Row<T> row_of(const AttentionScoresArgs& args) {
  using acc_t = acc_type<T>;
  const int64_t row = blockIdx.x;
  const int64_t at = row * args.keys;
  const int64_t last = args.offset + row % args.queries;
  Row<T> result;
  result.scores = static_cast<acc_t*>(args.scores) + at;
  result.probs = static_cast<T*>(args.probs) + at;
  result.dprobs = static_cast<acc_t*>(args.dprobs) + at;
  result.dscores = static_cast<T*>(args.dscores) + at;
  result.end = min(last + 1, args.keys);
  result.first = max(last + 1 - args.window, int64_t{0});
  return result;
}

// The scaled score, capped.
template <typename acc_t>
__device__ __forceinline__ acc_t capped(acc_t score, acc_t scale, acc_t cap) {
  const acc_t scaled = score * scale;
  return cap > acc_t(0) ? cap * tanh(scaled / cap) : scaled;
}

// Joins two pairs of (largest score, sum of exp(score - largest)). The sum of an empty pair is 0.
template <typename acc_t>
__device__ __forceinline__ void join(acc_t& largest, acc_t& sum, acc_t other_largest, acc_t other_sum) {
  if (other_sum == acc_t(0)) {
    return;
  }
  if (sum == acc_t(0)) {
    largest = other_largest;
    sum = other_sum;
    return;
  }
  const acc_t top = max(largest, other_largest);
  sum = sum * exp(largest - top) + other_sum * exp(other_largest - top);
  largest = top;
}

// The log-sum-exp of the pairs of all threads, the same bits on every thread.
template <typename acc_t>
__device__ __forceinline__ acc_t block_log_sum_exp(acc_t largest, acc_t sum) {
  __shared__ acc_t largest_of[kWarps], sum_of[kWarps];
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const acc_t other_largest = __shfl_down_sync(kAllLanes, largest, offset);
    const acc_t other_sum = __shfl_down_sync(kAllLanes, sum, offset);
    join(largest, sum, other_largest, other_sum);
  }
  if (threadIdx.x % kWarp == 0) {
    largest_of[threadIdx.x / kWarp] = largest;
    sum_of[threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  acc_t all_largest = largest_of[0], all_sum = sum_of[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    join(all_largest, all_sum, largest_of[warp], sum_of[warp]);
  }
  return all_largest + log(all_sum);
}

template <typename T>
__global__ __launch_bounds__(kThreads) void softmax(const __grid_constant__ AttentionScoresArgs args) {
  using acc_t = acc_type<T>;
  const Row<T> row = row_of<T>(args);
  const acc_t scale = static_cast<acc_t>(args.scale), cap = static_cast<acc_t>(args.softcap);
  acc_t largest = 0, sum = 0;
  for (int64_t key = row.first + threadIdx.x; key < row.end; key += kThreads) {
    join(largest, sum, capped(row.scores[key], scale, cap), acc_t(1));
  }
  const acc_t lse = block_log_sum_exp(largest, sum);
  if (threadIdx.x == 0) {
    static_cast<acc_t*>(args.lse)[blockIdx.x] = lse;
  }
  for (int64_t key = threadIdx.x; key < args.keys; key += kThreads) {
    const bool seen = key >= row.first && key < row.end;
    row.probs[key] = from_acc<T>(seen ? exp(capped(row.scores[key], scale, cap) - lse) : acc_t(0));
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void softmax_backward(const __grid_constant__ AttentionScoresArgs args) {
  using acc_t = acc_type<T>;
  const Row<T> row = row_of<T>(args);
  const acc_t scale = static_cast<acc_t>(args.scale), cap = static_cast<acc_t>(args.softcap);
  const acc_t lse = static_cast<const acc_t*>(args.lse)[blockIdx.x];
  const acc_t row_dot = static_cast<const acc_t*>(args.row_dot)[blockIdx.x];
  for (int64_t key = threadIdx.x; key < args.keys; key += kThreads) {
    if (key < row.first || key >= row.end) {
      row.probs[key] = from_acc<T>(acc_t(0));
      row.dscores[key] = from_acc<T>(acc_t(0));
      continue;
    }
    const acc_t score = capped(row.scores[key], scale, cap);
    const acc_t ratio = cap > acc_t(0) ? score / cap : acc_t(0); // the tanh
    const acc_t prob = exp(score - lse);
    const acc_t dscore = prob * (row.dprobs[key] - row_dot) * (acc_t(1) - ratio * ratio) * scale;
    row.probs[key] = from_acc<T>(prob);
    row.dscores[key] = from_acc<T>(dscore);
  }
}

} // namespace

const char* launch_attention_softmax(const AttentionScoresArgs& args, CUstream_st* stream) {
  with_type(args.type, [&](auto tag) {
    softmax<typename decltype(tag)::type><<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  return launch_problem();
}

const char* launch_attention_softmax_backward(const AttentionScoresArgs& args, CUstream_st* stream) {
  with_type(args.type, [&](auto tag) {
    softmax_backward<typename decltype(tag)::type><<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args);
  });
  return launch_problem();
}

} // namespace distill::models
