#include "trainer/models/ops/float8.cuh"
#include "trainer/models/ops/float8_kernel.h"

namespace distill::models {

namespace {

constexpr int kThreads = 256;
constexpr int kPackElements = 4; // of fp32 in an access

// The elements of one row that are in the part, by their index in the part; one block works on a row.
struct RowOfPart {
  int64_t row, begin, end;

  __device__ explicit RowOfPart(const Float8PartArgs& args) : row(args.first / args.columns + blockIdx.x) {
    begin = max(row * args.columns - args.first, int64_t{0});
    end = min((row + 1) * args.columns - args.first, args.count);
  }
  // Elements before the first aligned access.
  __device__ int64_t unaligned(const float* elements) const {
    const int64_t past = (reinterpret_cast<uintptr_t>(elements + begin) / sizeof(float)) % kPackElements;
    return min((kPackElements - past) % kPackElements, end - begin);
  }
};

__global__ __launch_bounds__(kThreads) void row_magnitudes(const __grid_constant__ Float8PartArgs args) {
  __shared__ RowScratch<float> shared;
  const RowOfPart part(args);
  const int64_t head = part.unaligned(args.elements);
  const float* aligned = args.elements + part.begin + head;
  const int64_t packs = (part.end - part.begin - head) / kPackElements;
  float largest = 0;
  if (threadIdx.x < head) {
    largest = fabsf(args.elements[part.begin + threadIdx.x]);
  }
  for (int64_t p = threadIdx.x; p < packs; p += kThreads) {
    largest = larger(largest, largest_of(load_pack<float, kPackElements>(aligned + p * kPackElements)));
  }
  for (int64_t i = part.begin + head + packs * kPackElements + threadIdx.x; i < part.end; i += kThreads) {
    largest = larger(largest, fabsf(args.elements[i]));
  }
  largest = row_max(largest, shared);
  if (threadIdx.x == 0) {
    args.largest[part.row] = larger(args.largest[part.row], largest);
  }
}

__global__ __launch_bounds__(kThreads) void round_part(const __grid_constant__ Float8PartArgs args) {
  const RowOfPart part(args);
  const float inverse = 1.0F / args.scale[part.row];
  auto* values = static_cast<uint8_t*>(args.values);
  const int64_t head = part.unaligned(args.elements);
  // If both buffers are aligned, so are the row's elements and bytes together; otherwise they are moved one by one.
  const bool wide = reinterpret_cast<uintptr_t>(values + part.begin + head) % kPackElements == 0;
  const int64_t packs = wide ? (part.end - part.begin - head) / kPackElements : 0;
  const auto round_one = [&](int64_t i) { store_float8(values + i, Pack<float, 1>{{args.elements[i]}}, inverse); };
  if (wide && threadIdx.x < head) {
    round_one(part.begin + threadIdx.x);
  }
  const int64_t first = part.begin + (wide ? head : 0);
  for (int64_t p = threadIdx.x; p < packs; p += kThreads) {
    const int64_t i = first + p * kPackElements;
    store_float8(values + i, load_pack<float, kPackElements>(args.elements + i), inverse);
  }
  for (int64_t i = first + packs * kPackElements + threadIdx.x; i < part.end; i += kThreads) {
    round_one(i);
  }
}

template <typename Kernel>
const char* launch(const Kernel& kernel, const Float8PartArgs& args, CUstream_st* stream) {
  const int64_t rows = (args.first + args.count - 1) / args.columns - args.first / args.columns + 1;
  kernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(args);
  return launch_problem();
}

} // namespace

const char* launch_float8_row_magnitudes(const Float8PartArgs& args, CUstream_st* stream) {
  return launch(row_magnitudes, args, stream);
}

const char* launch_float8_round_part(const Float8PartArgs& args, CUstream_st* stream) {
  return launch(round_part, args, stream);
}

} // namespace distill::models
