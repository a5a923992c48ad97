#pragma once

// The declarations that the header of a CUDA kernel needs. Kernels take plain pointers and know nothing of ATen.
struct CUstream_st; // cudaStream_t is a pointer to it; this spelling compiles without a CUDA toolkit

namespace distill::models {

enum class ElementType {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64
};

} // namespace distill::models
