#include "losses/products/fp32_product.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "losses/products/blas_lt.h"

namespace distill::losses {

namespace {

// These tiles have 14336 to 22528 results. Times with each of them differ little; larger tiles take up to 1.4 times
// as long for sums of 1024 rows.
constexpr std::array kTiles{CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_112x128, CUBLASLT_MATMUL_TILE_128x112,
                            CUBLASLT_MATMUL_TILE_120x128, CUBLASLT_MATMUL_TILE_128x120, CUBLASLT_MATMUL_TILE_136x128,
                            CUBLASLT_MATMUL_TILE_128x136, CUBLASLT_MATMUL_TILE_144x128, CUBLASLT_MATMUL_TILE_128x144,
                            CUBLASLT_MATMUL_TILE_152x128, CUBLASLT_MATMUL_TILE_128x152, CUBLASLT_MATMUL_TILE_160x128,
                            CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_168x128, CUBLASLT_MATMUL_TILE_128x168,
                            CUBLASLT_MATMUL_TILE_176x128, CUBLASLT_MATMUL_TILE_128x176};

// An Operand is a row-major matrix as cuBLASLt sees its memory: its columns are our rows.
struct Operand {
  cublasOperation_t operation = CUBLAS_OP_N;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  auto key() const {
    return std::tuple(operation, rows, columns, stride);
  }
};

bool contiguous_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 && matrix.stride(0) >= matrix.size(1);
}

std::optional<Operand> operand_of(const at::Tensor& matrix) {
  if (contiguous_rows(matrix)) {
    return Operand{CUBLAS_OP_N, matrix.size(1), matrix.size(0), matrix.stride(0)};
  }
  if (contiguous_rows(matrix.t())) {
    return Operand{CUBLAS_OP_T, matrix.size(0), matrix.size(1), matrix.stride(1)};
  }
  return std::nullopt;
}

cudaDataType_t type_of(const at::Tensor& matrix) {
  return matrix.scalar_type() == at::kHalf ? CUDA_R_16F : CUDA_R_16BF;
}

template <typename T>
T attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  blas_lt::check(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written),
      "cublasLtMatmulAlgoConfigGetAttribute");
  return value;
}

// A Product is out^T = right^T left^T, all column-major.
struct Product {
  Operand right;
  Operand left;
  Operand out;
  cudaDataType_t type;
  std::array<uint32_t, 3> alignments; // of right, left, out
  blas_lt::Description description;
  blas_lt::Layout right_layout;
  blas_lt::Layout left_layout;
  blas_lt::Layout out_layout;
};

std::optional<Product> describe(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  const std::optional<Operand> a = operand_of(right);
  const std::optional<Operand> b = operand_of(left);
  const std::optional<Operand> c = operand_of(out);
  if (!a || !b || !c || c->operation != CUBLAS_OP_N || out.numel() == 0 || left.size(1) == 0) {
    return std::nullopt;
  }
  Product product{
      *a,
      *b,
      *c,
      type_of(left),
      {blas_lt::alignment_of(right), blas_lt::alignment_of(left), blas_lt::alignment_of(out)},
      blas_lt::make_description(),
      blas_lt::make_layout(type_of(right), a->rows, a->columns, a->stride),
      blas_lt::make_layout(type_of(left), b->rows, b->columns, b->stride),
      blas_lt::make_layout(CUDA_R_32F, c->rows, c->columns, c->stride)};
  blas_lt::set(product.description, CUBLASLT_MATMUL_DESC_TRANSA, a->operation);
  blas_lt::set(product.description, CUBLASLT_MATMUL_DESC_TRANSB, b->operation);
  return product;
}

// Returns the first algorithm offered that has such a tile, needs no workspace and sums in one piece. For a weight
// gradient, whose left operand is transposed, it is the first with clusters of two blocks along the hidden size, or
// with tiles of 128 x 128: where that size is no multiple of two tiles the former are not offered, and the latter took
// 8 to 19 % less time than the first (docs/loss_head_notes.md).
std::optional<cublasLtMatmulAlgo_t> choose(cublasLtHandle_t handle, const Product& product) {
  constexpr int kOffers = 32;
  const blas_lt::Preference preference = blas_lt::make_preference();
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{0});
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, product.alignments[0]);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, product.alignments[1]);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, product.alignments[2]);
  blas_lt::set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, product.alignments[2]);
  std::array<cublasLtMatmulHeuristicResult_t, kOffers> offers{};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, product.description.get(), product.right_layout.get(), product.left_layout.get(),
      product.out_layout.get(), product.out_layout.get(), preference.get(), kOffers, offers.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    return std::nullopt;
  }
  blas_lt::check(status, "cublasLtMatmulAlgoGetHeuristic");
  const bool weight_gradient = product.left.operation == CUBLAS_OP_T;
  std::optional<cublasLtMatmulAlgo_t> first;
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulAlgo_t& algorithm = offers[i].algo;
    const auto tile =
        static_cast<cublasLtMatmulTile_t>(attribute_of<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID));
    if (offers[i].state != CUBLAS_STATUS_SUCCESS || std::find(kTiles.begin(), kTiles.end(), tile) == kTiles.end() ||
        attribute_of<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) {
      continue;
    }
    if (!first) {
      first = algorithm;
    }
    const auto cluster =
        static_cast<cublasLtClusterShape_t>(attribute_of<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
    if (!weight_gradient || cluster == CUBLASLT_CLUSTER_SHAPE_2x1x1 || tile == CUBLASLT_MATMUL_TILE_128x128) {
      return algorithm;
    }
  }
  return first;
}

// Remembers choices by everything that they depend on: choosing takes longer than queueing the product.
std::optional<cublasLtMatmulAlgo_t> chosen(cublasLtHandle_t handle, const Product& product, int device) {
  using OperandKey = decltype(product.right.key());
  using Key = std::tuple<int, cudaDataType_t, OperandKey, OperandKey, OperandKey, std::array<uint32_t, 3>>;
  static auto& mutex = *new std::mutex; // neither is destroyed: threads may outlive static objects
  static auto& choices = *new std::map<Key, std::optional<cublasLtMatmulAlgo_t>>;
  const Key key{device, product.type, product.right.key(), product.left.key(), product.out.key(), product.alignments};
  const std::lock_guard lock(mutex);
  auto known = choices.find(key);
  if (known == choices.end()) {
    known = choices.emplace(key, choose(handle, product)).first;
  }
  return known->second;
}

bool is_hopper(const at::Tensor& tensor) {
  const cudaDeviceProp& gpu = *at::cuda::getDeviceProperties(tensor.get_device()); // read once by libtorch
  return gpu.major == 9 && gpu.minor == 0;
}

// Returns whether there was an algorithm of our choice.
bool blas_lt_product(at::Tensor& out, const at::Tensor& left, const at::Tensor& right, double scale, bool accumulates) {
  const std::optional<Product> product = describe(out, left, right);
  if (!product) {
    return false;
  }
  const cublasLtHandle_t handle = at::cuda::getCurrentCUDABlasLtHandle();
  const std::optional<cublasLtMatmulAlgo_t> algorithm = chosen(handle, *product, out.get_device());
  if (!algorithm) {
    return false;
  }
  const auto alpha = static_cast<float>(scale);
  const float beta = accumulates ? 1 : 0;
  blas_lt::check(
      cublasLtMatmul(
          handle, product->description.get(), &alpha, right.const_data_ptr(), product->right_layout.get(),
          left.const_data_ptr(), product->left_layout.get(), &beta, out.const_data_ptr(), product->out_layout.get(),
          out.mutable_data_ptr(), product->out_layout.get(), &*algorithm, /*workspace=*/nullptr, 0,
          c10::cuda::getCurrentCUDAStream(out.get_device())),
      "cublasLtMatmul");
  return true;
}

} // namespace

void fp32_product(
    at::Tensor& out_MN, const at::Tensor& left_MK, const at::Tensor& right_KN, double scale, bool accumulates) {
  const at::DeviceGuard guard(out_MN.device());
  if (is_hopper(out_MN) && blas_lt_product(out_MN, left_MK, right_KN, scale, accumulates)) {
    return;
  }
  at::addmm_out(out_MN, out_MN, left_MK, right_KN, at::kFloat, /*beta=*/accumulates ? 1 : 0, /*alpha=*/scale);
}

} // namespace distill::losses
