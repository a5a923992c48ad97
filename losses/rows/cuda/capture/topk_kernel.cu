// Finds the K largest logits of each row, one block for each row: radix select finds the K-th key, the columns at or
// above it are collected and sorted. Equal logits go by column, so that the result is the same in every run.
#include "losses/rows/cuda/capture/kernels.h"

#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

namespace {

constexpr int kThreads = 512;
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;

// Unsigned keys have the order of the numbers; NaN is above all, as on the CPU.
__device__ __forceinline__ unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(x == 0 ? 0.0F : x);
  return x != x ? 0xffffffffU : ((bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U);
}

__device__ __forceinline__ unsigned long long key_of(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x == 0 ? 0.0 : x));
  return x != x ? ~0ULL : ((bits >> 63U) != 0 ? ~bits : bits | (1ULL << 63U));
}

template <typename Key>
struct Shared {
  int counts[kDigits];
  int wanted; // columns still wanted among those with the digits found so far
  int tied; // columns whose key is the K-th one
  int found;
  Key prefix;
  Key keys[kMaxEntries];
  int columns[kMaxEntries];
};

// Finds the K-th largest key: its digits, from the highest on.
template <typename T, typename Key>
__device__ void select_key(const T* logits, int64_t vocab, int entries, Shared<Key>& shared) {
  if (threadIdx.x == 0) {
    shared.wanted = entries;
    shared.prefix = 0;
  }
  for (int shift = static_cast<int>(sizeof(Key)) * 8 - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (int d = threadIdx.x; d < kDigits; d += kThreads) {
      shared.counts[d] = 0;
    }
    __syncthreads(); // counts are 0, and the prefix is known
    const Key prefix = shared.prefix;
    const bool all = shift + kDigitBits == static_cast<int>(sizeof(Key)) * 8;
    for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
      const Key key = key_of(logits[v]);
      if (all || (key >> (shift + kDigitBits)) == prefix) {
        atomicAdd(&shared.counts[static_cast<int>(key >> shift) & (kDigits - 1)], 1);
      }
    }
    __syncthreads(); // the counts are complete
    if (threadIdx.x == 0) {
      int digit = kDigits - 1;
      while (shared.counts[digit] < shared.wanted) {
        shared.wanted -= shared.counts[digit--];
      }
      shared.prefix = (prefix << kDigitBits) | static_cast<Key>(digit);
      shared.tied = shared.counts[digit];
    }
    __syncthreads();
  }
}

// Collects the columns whose key is above the K-th one, and as many with that key as are wanted: the lowest ones, which
// one warp takes in order where there are more.
template <typename T, typename Key>
__device__ void collect(const T* logits, int64_t vocab, Shared<Key>& shared) {
  const Key last = shared.prefix;
  const bool takes_all_ties = shared.tied == shared.wanted;
  if (threadIdx.x == 0) {
    shared.found = 0;
  }
  __syncthreads();
  const auto put = [&](int slot, Key key, int64_t v) {
    shared.keys[slot] = key;
    shared.columns[slot] = static_cast<int>(v);
  };
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const Key key = key_of(logits[v]);
    if (key > last || (key == last && takes_all_ties)) {
      put(atomicAdd(&shared.found, 1), key, v);
    }
  }
  __syncthreads();
  if (!takes_all_ties && threadIdx.x < kWarp) {
    int found = shared.found;
    int wanted = shared.wanted;
    const int lane = static_cast<int>(threadIdx.x);
    for (int64_t base = 0; base < vocab && wanted > 0; base += kWarp) {
      const bool tied = base + lane < vocab && key_of(logits[base + lane]) == last;
      const unsigned lanes = __ballot_sync(kAllLanes, tied);
      const int before = __popc(lanes & ((1U << lane) - 1));
      if (tied && before < wanted) {
        put(found + before, last, base + lane);
      }
      const int taken = min(wanted, __popc(lanes));
      found += taken;
      wanted -= taken;
    }
  }
  __syncthreads();
}

// A bitonic sort puts shared.keys and columns in order: the largest key first, of equal ones the lowest column.
template <typename Key>
__device__ void sort(int entries, Shared<Key>& shared) {
  int size = 1;
  while (size < entries) {
    size *= 2;
  }
  for (int i = entries + static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    shared.keys[i] = 0;
    shared.columns[i] = INT32_MAX;
  }
  for (int length = 2; length <= size; length *= 2) {
    for (int distance = length / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < size; i += kThreads) {
        const int j = i ^ distance;
        const bool right_order = shared.keys[i] > shared.keys[j] ||
            (shared.keys[i] == shared.keys[j] && shared.columns[i] < shared.columns[j]);
        if (j > i && right_order != ((i & length) == 0)) {
          const Key key = shared.keys[i];
          shared.keys[i] = shared.keys[j];
          shared.keys[j] = key;
          const int column = shared.columns[i];
          shared.columns[i] = shared.columns[j];
          shared.columns[j] = column;
        }
      }
    }
  }
  __syncthreads();
}

// args: see CaptureRowArgs; block r takes row r.
template <typename T>
__global__ __launch_bounds__(kThreads) void topk(const __grid_constant__ CaptureRowArgs args) {
  using Key = decltype(key_of(T()));
  __shared__ Shared<Key> shared;
  const int64_t row = blockIdx.x;
  const T* logits = static_cast<const T*>(args.logits) + row * args.logits_stride;
  const auto entries = static_cast<int>(args.entries);
  select_key(logits, args.vocab, entries, shared);
  collect(logits, args.vocab, shared);
  sort(entries, shared);
  for (int k = threadIdx.x; k < entries; k += kThreads) {
    args.ids[row * args.ids_stride + k] = shared.columns[k];
  }
}

} // namespace

const char* launch_topk(const CaptureRowArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.num_rows);
  if (args.logits_type == ElementType::kFloat64) {
    topk<double><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    topk<float><<<blocks, kThreads, 0, stream>>>(args);
  }
  return launch_error();
}

} // namespace distill::losses
