#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "losses/products/blas_lt.h"
#include "trainer/models/ops/blas_lt.h"

namespace distill::models {
namespace {

cudaDataType_t type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kBFloat16:
      return CUDA_R_16BF;
    case at::kHalf:
      return CUDA_R_16F;
    case at::kFloat8_e4m3fn:
      return CUDA_R_8F_E4M3;
    case at::kFloat:
      return CUDA_R_32F;
    default:
      TORCH_CHECK(false, "cuBLASLt: bf16, fp16, e4m3 or fp32 is expected, found ", tensor.scalar_type());
  }
}

// A row-major matrix [R, C] is column-major [C, R] to cuBLASLt.
blas_lt::Layout layout_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "cuBLASLt: a contiguous matrix is expected");
  return blas_lt::make_layout(type_of(tensor), tensor.size(1), tensor.size(0), tensor.size(1));
}

// The product as cuBLASLt sees it: out^T [O, N] = W [O, I] x^T [I, N], all column-major, W transposed.
blas_lt::Description describe(const BlasLtOperand& x, const BlasLtOperand& weight, bool fast_accumulation) {
  blas_lt::Description description = blas_lt::make_description();
  blas_lt::set(description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (weight.scale.defined()) {
    const auto row_scales = static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    blas_lt::set(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, row_scales);
    blas_lt::set(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, row_scales);
    blas_lt::set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight.scale.const_data_ptr());
    blas_lt::set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.scale.const_data_ptr());
    blas_lt::set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{fast_accumulation});
  }
  return description;
}

using Alignments = std::array<uint32_t, 4>; // of W, x, residual, out
struct Layouts {
  blas_lt::Layout weight, x, residual, out;
};

cublasLtMatmulAlgo_t choose_algorithm(
    cublasLtHandle_t handle, const blas_lt::Description& description, const Layouts& layouts,
    const Alignments& alignments, uint64_t workspace) {
  const blas_lt::Preference preference = blas_lt::make_preference();
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[3]);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  blas_lt::check(
      cublasLtMatmulAlgoGetHeuristic(
          handle, description.get(), layouts.weight.get(), layouts.x.get(), layouts.residual.get(), layouts.out.get(),
          preference.get(), 1, &result, &found),
      "cublasLtMatmulAlgoGetHeuristic");
  TORCH_CHECK(found > 0, "cuBLASLt has no algorithm for a product that adds to what another tensor holds");
  return result.algo;
}

// Algorithms by everything that the choice depends on; the choice takes longer than queueing the product.
class Algorithms {
 public:
  template <typename Choose>
  cublasLtMatmulAlgo_t get(
      const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out, bool fast_accumulation,
      const Alignments& alignments, const Choose& choose) {
    const Key key{x.get_device(),  x.size(0),         x.size(1),         weight.size(0),
                  x.scalar_type(), out.scalar_type(), fast_accumulation, alignments};
    const std::lock_guard lock(mutex_);
    auto found = chosen_.find(key);
    if (found == chosen_.end()) {
      found = chosen_.emplace(key, choose()).first;
    }
    return found->second;
  }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, at::ScalarType, at::ScalarType, bool, Alignments>;
  std::mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> chosen_;
};

// out = x W^T + beta * residual, which may be `out` itself.
void multiply(
    const BlasLtOperand& x, const BlasLtOperand& weight, float beta, const at::Tensor& residual, at::Tensor& out,
    bool fast_accumulation) {
  const at::DeviceGuard guard(out.device());
  static auto& algorithms = *new Algorithms; // never destroyed: streams may outlive static objects
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  void* workspace = at::cuda::getCUDABlasLtWorkspace();
  const auto workspace_bytes = at::cuda::getCUDABlasLtWorkspaceSize();
  const blas_lt::Description description = describe(x, weight, fast_accumulation);
  const Layouts layouts{layout_of(weight.values), layout_of(x.values), layout_of(residual), layout_of(out)};
  const Alignments alignments{
      blas_lt::alignment_of(weight.values), blas_lt::alignment_of(x.values), blas_lt::alignment_of(residual),
      blas_lt::alignment_of(out)};
  const cublasLtMatmulAlgo_t algorithm = algorithms.get(
      x.values, weight.values, out, fast_accumulation, alignments,
      [&] { return choose_algorithm(handle, description, layouts, alignments, workspace_bytes); });
  const float one = 1;
  blas_lt::check(
      cublasLtMatmul(
          handle, description.get(), &one, weight.values.const_data_ptr(), layouts.weight.get(),
          x.values.const_data_ptr(), layouts.x.get(), &beta, residual.const_data_ptr(), layouts.residual.get(),
          out.mutable_data_ptr(), layouts.out.get(), &algorithm, workspace, workspace_bytes,
          c10::cuda::getCurrentCUDAStream(out.get_device())),
      "cublasLtMatmul");
}

} // namespace

bool blas_lt_scales_rows(at::Device device) {
  const cudaDeviceProp& gpu = *at::cuda::getDeviceProperties(device.index()); // read once by libtorch
  return gpu.major == 9 && gpu.minor == 0;
}

void blas_lt_product_add(
    const BlasLtOperand& x, const BlasLtOperand& weight, const at::Tensor& residual, at::Tensor& out) {
  multiply(x, weight, /*beta=*/1, residual, out, /*fast_accumulation=*/true);
}

void blas_lt_float8_product(
    const BlasLtOperand& x, const BlasLtOperand& weight, at::Tensor& out, bool accumulate, bool fast_accumulation) {
  multiply(x, weight, accumulate ? 1 : 0, out, out, fast_accumulation);
}

} // namespace distill::models
