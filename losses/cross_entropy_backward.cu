// One block for a stretch of one row. The logits are read once and the gradient written once, 16 bytes a thread where
// both are aligned, so the kernel runs at the speed of a copy.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "losses/cross_entropy_math.h"

namespace distill::losses {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerBlock = 8192; // columns
constexpr int kVectorBytes = 16;

template <typename Logit>
struct Vector {
  static constexpr int kSize = kVectorBytes / sizeof(Logit);
  alignas(kVectorBytes) Logit values[kSize];
};

__device__ float to_compute(float x) {
  return x;
}
__device__ double to_compute(double x) {
  return x;
}
__device__ float to_compute(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ void store(float x, float* out) {
  *out = x;
}
__device__ void store(double x, double* out) {
  *out = x;
}
__device__ void store(float x, __nv_bfloat16* out) {
  *out = __float2bfloat16(x);
}

// No block reads what another one writes, so the gradient may be the logits.
template <bool kAligned, bool kSoftcap, typename T, typename Logit>
__global__ __launch_bounds__(kThreads) void backward(const __grid_constant__ CrossEntropyBackwardArgs a) {
  constexpr int kSize = kAligned ? Vector<Logit>::kSize : 1;
  const int64_t r = blockIdx.y + int64_t{blockIdx.z} * gridDim.y;
  if (r >= a.num_rows) {
    return;
  }
  const int64_t first = blockIdx.x * kPerBlock;
  const int64_t end = first + kPerBlock < a.vocab ? first + kPerBlock : a.vocab;
  const Logit* logits = static_cast<const Logit*>(a.logits) + r * a.logits_stride;
  Logit* gradient = static_cast<Logit*>(a.gradient) + r * a.gradient_stride;
  const int64_t label = a.targets[r];
  const T scale = static_cast<const T*>(a.scale)[r];
  const bool counts = label != kIgnoreIndex && scale != 0;
  const CrossEntropyRow<T> row = cross_entropy_row<T>(a.options, a.vocab, static_cast<const T*>(a.lse)[r], scale);
  const auto one = [&](Logit logit, int64_t v) {
    return counts ? cross_entropy_gradient<kSoftcap>(to_compute(logit), v == label, row) : T(0);
  };
  for (int64_t v = first + threadIdx.x * kSize; v < end; v += kThreads * kSize) {
    if (kSize > 1 && v + kSize <= end) {
      const auto in = *reinterpret_cast<const Vector<Logit>*>(logits + v);
      Vector<Logit> out;
#pragma unroll
      for (int i = 0; i < Vector<Logit>::kSize; ++i) {
        store(one(in.values[i], v + i), &out.values[i]);
      }
      *reinterpret_cast<Vector<Logit>*>(gradient + v) = out;
    } else {
      for (int64_t i = v; i < end && i < v + kSize; ++i) {
        store(one(logits[i], i), gradient + i);
      }
    }
  }
}

bool aligned(const void* data, int64_t stride, size_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 &&
      static_cast<size_t>(stride) * element_bytes % kVectorBytes == 0;
}

template <typename T, typename Logit>
const char* launch(const CrossEntropyBackwardArgs& a, cudaStream_t stream) {
  if (a.num_rows == 0) {
    return nullptr;
  }
  constexpr int64_t kMaxRowsOfGrid = 65535;
  const int64_t rows = a.num_rows < kMaxRowsOfGrid ? a.num_rows : kMaxRowsOfGrid;
  const dim3 grid(
      static_cast<unsigned>((a.vocab + kPerBlock - 1) / kPerBlock), static_cast<unsigned>(rows),
      static_cast<unsigned>((a.num_rows + rows - 1) / rows));
  const bool vectors =
      aligned(a.logits, a.logits_stride, sizeof(Logit)) && aligned(a.gradient, a.gradient_stride, sizeof(Logit));
  const bool softcap = a.options.student_softcap > 0;
  const auto kernel = vectors ? (softcap ? backward<true, true, T, Logit> : backward<true, false, T, Logit>)
                              : (softcap ? backward<false, true, T, Logit> : backward<false, false, T, Logit>);
  kernel<<<grid, kThreads, 0, stream>>>(a);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

} // namespace

const char* launch_cross_entropy_backward(const CrossEntropyBackwardArgs& args, void* stream) {
  auto* cuda_stream = static_cast<cudaStream_t>(stream);
  switch (args.type) {
    case ElementType::kFloat32:
      return launch<float, float>(args, cuda_stream);
    case ElementType::kBFloat16:
      return launch<float, __nv_bfloat16>(args, cuda_stream);
    case ElementType::kFloat64:
      return launch<double, double>(args, cuda_stream);
  }
  return "unknown type of logits";
}

} // namespace distill::losses
