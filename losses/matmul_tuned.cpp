#include "losses/matmul_tuned.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <absl/container/flat_hash_map.h>
#include <c10/cuda/CUDAException.h>
#include <cublasLt.h>

#include <deque>
#include <mutex>

#include "losses/kernel_choice.h"

namespace distill::losses {

namespace {

constexpr int kAskedFor = 16; // kernels; cublasLt names eight
// What ATen lets cuBLAS use on this generation: with it cublasLt says whether its own first choice would split the sum.
constexpr uint64_t kWorkspaceBytes = 32 << 20;

// cublasLt counts columns first: it computes out^T [N, M] = b^T a^T.
struct Operand {
  bool transposed;
  int64_t rows; // as it lies
  int64_t columns;
  int64_t stride;
};

bool lies_by_rows(const at::Tensor& x) {
  return x.stride(1) == 1 && (x.stride(0) >= x.size(1) || x.size(0) == 1);
}

bool lies_by_columns(const at::Tensor& x) {
  return x.stride(0) == 1 && (x.stride(1) >= x.size(0) || x.size(1) == 1);
}

// Of a row-major product's operand x [R, C], seen column by column.
Operand operand_of(const at::Tensor& x) {
  return lies_by_rows(x) ? Operand{false, x.size(1), x.size(0), std::max(x.stride(0), x.size(1))}
                         : Operand{true, x.size(0), x.size(1), std::max(x.stride(1), x.size(0))};
}

uint32_t alignment_of(const at::Tensor& x) {
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  return address == 0 ? 256 : static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), 256));
}

// All that a choice depends on.
using Key = std::array<int64_t, 16>;

Key key_of(const MatmulProblem& p, const Operand& a, const Operand& b) {
  const bool adds = p.beta != 0;
  return {
      p.out_MN.get_device(),
      p.out_MN.size(0),
      p.out_MN.size(1),
      p.a_MK.size(1),
      a.transposed,
      a.stride,
      b.transposed,
      b.stride,
      p.out_MN.stride(0),
      adds ? p.added_MN.stride(0) : 0,
      adds,
      p.out_MN.scalar_type() == at::kFloat,
      alignment_of(p.a_MK),
      alignment_of(p.b_KN),
      alignment_of(p.out_MN),
      adds ? alignment_of(p.added_MN) : 0};
}

template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Destroy {
  void operator()(Handle handle) const {
    kDestroy(handle);
  }
};
using Layout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Description =
    std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Preference = std::unique_ptr<
    cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

Layout layout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t handle = nullptr;
  TORCH_CUDABLAS_CHECK(
      cublasLtMatrixLayoutCreate(&handle, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride));
  return Layout(handle);
}

template <typename Value>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof(value)));
}

template <typename Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

int32_t attribute_of(const cublasLtMatmulHeuristicResult_t& result, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = 0;
  size_t written = 0;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(&result.algo, attribute, &value, sizeof(value), &written));
  return value;
}

bool sums_in_one_pass(const cublasLtMatmulHeuristicResult_t& result) {
  return result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize == 0 &&
      attribute_of(result, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1 &&
      attribute_of(result, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) == CUBLASLT_REDUCTION_SCHEME_NONE;
}

// Large enough to be worth it, and laid out so that cublasLt offers tilings of one algorithm.
bool worth_choosing(const MatmulProblem& p) {
  constexpr double kLeastOperations = 4e9; // some microseconds
  const int64_t m = p.out_MN.size(0);
  const int64_t n = p.out_MN.size(1);
  const int64_t k = p.a_MK.size(1);
  const auto aligned = [](const at::Tensor& x) {
    return alignment_of(x) >= 16 && (x.stride(0) == 1 ? x.stride(1) : x.stride(0)) * x.element_size() % 16 == 0;
  };
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) >= kLeastOperations &&
      m % 8 == 0 && n % 8 == 0 && k % 8 == 0 && aligned(p.a_MK) && aligned(p.b_KN) && aligned(p.out_MN) &&
      (p.beta == 0 || aligned(p.added_MN));
}

// A call that is timed and whose time has not been read.
struct Timing {
  size_t candidate;
  cudaEvent_t begin;
  cudaEvent_t end;
};

// One shape: its kernels and which of them is fastest.
class Product {
 public:
  Product(const MatmulProblem& p, const Operand& a, const Operand& b);

  size_t candidates() const {
    return kernels_.size();
  }

  // False where the kernel could not be started.
  bool run(const MatmulProblem& p, size_t candidate) const;
  bool run_fastest(const MatmulProblem& p);

 private:
  void read_times();

  Description description_;
  Layout a_;
  Layout b_;
  Layout added_;
  Layout out_;
  std::vector<cublasLtMatmulAlgo_t> kernels_;
  KernelChoice choice_{0};
  std::deque<Timing> under_way_;
};

Product::Product(const MatmulProblem& p, const Operand& a, const Operand& b) {
  if (!worth_choosing(p)) {
    return;
  }
  const cudaDataType_t type = p.out_MN.scalar_type() == at::kFloat ? CUDA_R_32F : CUDA_R_16BF;
  const int64_t rows = p.out_MN.size(0);
  const int64_t columns = p.out_MN.size(1);
  cublasLtMatmulDesc_t description = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  description_.reset(description);
  // out^T = b^T a^T: b comes first.
  set(description_, CUBLASLT_MATMUL_DESC_TRANSA, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description_, CUBLASLT_MATMUL_DESC_TRANSB, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  b_ = layout(CUDA_R_16BF, b.rows, b.columns, b.stride);
  a_ = layout(CUDA_R_16BF, a.rows, a.columns, a.stride);
  out_ = layout(type, columns, rows, std::max(p.out_MN.stride(0), columns));
  added_ = layout(type, columns, rows, std::max((p.beta != 0 ? p.added_MN : p.out_MN).stride(0), columns));
  cublasLtMatmulPreference_t preference = nullptr;
  TORCH_CUDABLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  const Preference wanted(preference);
  set(wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b_KN));
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a_MK));
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.beta != 0 ? p.added_MN : p.out_MN));
  set(wanted, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.out_MN));
  std::array<cublasLtMatmulHeuristicResult_t, kAskedFor> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      at::cuda::getCurrentCUDABlasLtHandle(), description_.get(), b_.get(), a_.get(), added_.get(), out_.get(),
      wanted.get(), kAskedFor, found.data(), &count);
  if (status == CUBLAS_STATUS_SUCCESS && count > 0 && sums_in_one_pass(found[0])) {
    const int32_t algorithm = attribute_of(found[0], CUBLASLT_ALGO_CONFIG_ID); // others may sum in another order
    for (const cublasLtMatmulHeuristicResult_t& result : absl::MakeSpan(found.data(), static_cast<size_t>(count))) {
      if (sums_in_one_pass(result) && attribute_of(result, CUBLASLT_ALGO_CONFIG_ID) == algorithm) {
        kernels_.push_back(result.algo);
      }
    }
  }
  choice_ = KernelChoice(kernels_.size());
}

bool Product::run(const MatmulProblem& p, size_t candidate) const {
  const auto alpha = static_cast<float>(p.alpha);
  const auto beta = static_cast<float>(p.beta);
  const at::Tensor& added = p.beta != 0 ? p.added_MN : p.out_MN;
  return cublasLtMatmul(
             at::cuda::getCurrentCUDABlasLtHandle(), description_.get(), &alpha, p.b_KN.const_data_ptr(), b_.get(),
             p.a_MK.const_data_ptr(), a_.get(), &beta, added.const_data_ptr(), added_.get(),
             p.out_MN.mutable_data_ptr(), out_.get(), &kernels_[candidate], nullptr, 0,
             at::cuda::getCurrentCUDAStream()) == CUBLAS_STATUS_SUCCESS;
}

bool Product::run_fastest(const MatmulProblem& p) {
  if (at::globalContext().deterministicAlgorithms()) {
    return run(p, 0);
  }
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    return run(p, choice_.fastest());
  }
  read_times();
  const KernelChoice::Turn turn = choice_.next();
  if (!turn.timed) {
    return run(p, turn.candidate);
  }
  Timing timing{turn.candidate, nullptr, nullptr};
  C10_CUDA_CHECK(cudaEventCreate(&timing.begin));
  C10_CUDA_CHECK(cudaEventCreate(&timing.end));
  C10_CUDA_CHECK(cudaEventRecord(timing.begin, stream));
  const bool ran = run(p, turn.candidate);
  C10_CUDA_CHECK(cudaEventRecord(timing.end, stream));
  under_way_.push_back(timing);
  return ran;
}

// Those that are there; never waits.
void Product::read_times() {
  while (!under_way_.empty()) {
    const Timing& first = under_way_.front();
    const cudaError_t state = cudaEventQuery(first.end);
    if (state == cudaErrorNotReady) {
      cudaGetLastError(); // it is no error
      return;
    }
    float ms = 0;
    C10_CUDA_CHECK(state);
    C10_CUDA_CHECK(cudaEventElapsedTime(&ms, first.begin, first.end));
    choice_.record(first.candidate, ms);
    C10_CUDA_CHECK(cudaEventDestroy(first.begin));
    C10_CUDA_CHECK(cudaEventDestroy(first.end));
    under_way_.pop_front();
  }
}

bool readable(const at::Tensor& x) {
  return lies_by_rows(x) || lies_by_columns(x);
}

// Of the whole process; never destroyed, since at its end CUDA may be gone before.
struct Products {
  std::mutex mutex;
  absl::flat_hash_map<Key, std::unique_ptr<Product>> by_key;
};

// The product's entry, made at its first call; `products.mutex` is held.
Product& product_of(Products& products, const MatmulProblem& p) {
  const Operand a = operand_of(p.a_MK);
  const Operand b = operand_of(p.b_KN);
  std::unique_ptr<Product>& entry = products.by_key[key_of(p, a, b)];
  if (entry == nullptr) {
    entry = std::make_unique<Product>(p, a, b);
  }
  return *entry;
}

Products& all_products() {
  static auto& products = *new Products;
  return products;
}

} // namespace

bool tuned_matmul(const MatmulProblem& problem) {
  if (problem.out_MN.numel() == 0 || problem.a_MK.size(1) == 0 || !readable(problem.a_MK) || !readable(problem.b_KN) ||
      !lies_by_rows(problem.out_MN) || (problem.beta != 0 && !lies_by_rows(problem.added_MN))) {
    return false;
  }
  Products& products = all_products();
  const std::lock_guard lock(products.mutex);
  Product& product = product_of(products, problem);
  return product.candidates() > 0 && product.run_fastest(problem);
}

size_t matmul_candidates(const MatmulProblem& problem) {
  Products& products = all_products();
  const std::lock_guard lock(products.mutex);
  return product_of(products, problem).candidates();
}

void matmul_with_candidate(const MatmulProblem& problem, size_t candidate) {
  Products& products = all_products();
  const std::lock_guard lock(products.mutex);
  TORCH_CHECK(product_of(products, problem).run(problem, candidate), "cublasLt could not start kernel ", candidate);
}

} // namespace distill::losses
