#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

// This file frees cuBLASLt's descriptions with their owners and turns its errors into exceptions. It needs CUDA.
namespace distill::blas_lt {

inline void check(cublasStatus_t status, const char* call) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: ", call, ": ", cublasLtGetStatusString(status));
}

template <typename T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const {
    kDestroy(handle);
  }
};
using Layout = std::unique_ptr<cublasLtMatrixLayout_t, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Description = std::unique_ptr<cublasLtMatmulDesc_t, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreference_t, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

// Describes a column-major matrix: `stride` elements lie from one column to the next.
inline Layout make_layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(
      cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
      "cublasLtMatrixLayoutCreate");
  return Layout(layout);
}

// Describes a product that accumulates in fp32.
inline Description make_description() {
  cublasLtMatmulDesc_t created = nullptr;
  check(cublasLtMatmulDescCreate(&created, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  return Description(created);
}

inline Preference make_preference() {
  cublasLtMatmulPreference_t created = nullptr;
  check(cublasLtMatmulPreferenceCreate(&created), "cublasLtMatmulPreferenceCreate");
  return Preference(created);
}

template <typename T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(
      cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)),
      "cublasLtMatmulDescSetAttribute");
}

template <typename T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  check(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

// Returns the largest power of two up to 256 that divides the address.
inline uint32_t alignment_of(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  uint32_t alignment = 256;
  while (address % alignment != 0) {
    alignment /= 2;
  }
  return alignment;
}

} // namespace distill::blas_lt
