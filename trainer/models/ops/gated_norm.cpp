#include "trainer/models/ops/gated_norm.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/delta_math.h"
#include "trainer/models/ops/gated_norm_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {
namespace {

constexpr int64_t kTokensPerTask = 8;

void check(const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D) {
  TORCH_CHECK(
      x_NV.dim() == 2 && x_NV.is_contiguous() && z_NV.sizes() == x_NV.sizes() && z_NV.stride(1) == 1 &&
          weight_D.dim() == 1 && x_NV.size(1) % weight_D.size(0) == 0 && weight_D.size(0) <= kMaxGatedHead,
      "gated_norm: contiguous x [N, heads * D], z of the same size and a weight of at most ", kMaxGatedHead,
      " elements are expected, found ", x_NV.sizes(), ", ", z_NV.sizes(), " and ", weight_D.sizes());
}

template <typename T, typename acc_t>
acc_t inverse_rms(const T* x, int64_t dim, double eps) {
  acc_t squares = 0;
  for (int64_t d = 0; d < dim; ++d) {
    squares += static_cast<acc_t>(x[d]) * static_cast<acc_t>(x[d]);
  }
  return acc_t(1) / std::sqrt(squares / static_cast<acc_t>(dim) + static_cast<acc_t>(eps));
}

template <typename T>
void forward_cpu(
    const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps, at::Tensor& y_NV) {
  using acc_t = at::opmath_type<T>;
  const int64_t width = x_NV.size(1), dim = weight_D.size(0), z_stride = z_NV.stride(0);
  const T *x_all = x_NV.const_data_ptr<T>(), *z_all = z_NV.const_data_ptr<T>(), *weight = weight_D.const_data_ptr<T>();
  T* y_all = y_NV.mutable_data_ptr<T>();
  at::parallel_for(0, x_NV.size(0), kTokensPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t first = 0; first < width; first += dim) {
        const T *x = x_all + n * width + first, *z = z_all + n * z_stride + first;
        T* y = y_all + n * width + first;
        const acc_t rstd = inverse_rms<T, acc_t>(x, dim, eps);
        for (int64_t d = 0; d < dim; ++d) {
          y[d] = static_cast<T>(
              static_cast<acc_t>(x[d]) * rstd * static_cast<acc_t>(weight[d]) * silu(static_cast<acc_t>(z[d])));
        }
      }
    }
  });
}

// Adds the weight's gradient to the sums over blocks of kGatedNormTokens tokens: [blocks, D].
template <typename T>
void backward_cpu(
    const at::Tensor& dy_NV, const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps,
    at::Tensor& dx_NV, at::Tensor& dz_NV, at::Tensor& parts_BD) {
  using acc_t = at::opmath_type<T>;
  const int64_t width = x_NV.size(1), dim = weight_D.size(0);
  const T *x_all = x_NV.const_data_ptr<T>(), *z_all = z_NV.const_data_ptr<T>(), *weight = weight_D.const_data_ptr<T>();
  const T* dy_all = dy_NV.const_data_ptr<T>();
  T *dx_all = dx_NV.mutable_data_ptr<T>(), *dz_all = dz_NV.mutable_data_ptr<T>();
  const int64_t blocks = parts_BD.size(0);
  auto* parts = parts_BD.mutable_data_ptr<acc_t>();
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kGatedNormTokens; n < std::min(end * kGatedNormTokens, x_NV.size(0)); ++n) {
      acc_t* grad = parts + n / kGatedNormTokens * dim;
      for (int64_t first = 0; first < width; first += dim) {
        const T *x = x_all + n * width + first, *z = z_all + n * z_NV.stride(0) + first;
        const T* dy = dy_all + n * width + first;
        T *dx = dx_all + n * width + first, *dz = dz_all + n * dz_NV.stride(0) + first;
        const acc_t rstd = inverse_rms<T, acc_t>(x, dim, eps);
        acc_t dot = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const auto gate = static_cast<acc_t>(z[d]), dout = static_cast<acc_t>(dy[d]);
          const auto own = static_cast<acc_t>(x[d]), w = static_cast<acc_t>(weight[d]);
          const acc_t gated = dout * silu(gate);
          grad[d] += gated * own * rstd;
          dz[d] = static_cast<T>(dout * own * rstd * w * silu_slope(gate));
          dot += gated * w * own;
        }
        const acc_t scale = dot * rstd * rstd * rstd / static_cast<acc_t>(dim);
        for (int64_t d = 0; d < dim; ++d) {
          const acc_t gated = static_cast<acc_t>(dy[d]) * silu(static_cast<acc_t>(z[d]));
          dx[d] = static_cast<T>(gated * static_cast<acc_t>(weight[d]) * rstd - scale * static_cast<acc_t>(x[d]));
        }
      }
    }
  });
}

GatedNormArgs kernel_args(const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps) {
  GatedNormArgs args{};
  args.x = x_NV.const_data_ptr();
  args.z = z_NV.const_data_ptr();
  args.weight = weight_D.const_data_ptr();
  args.tokens = x_NV.size(0);
  args.dim = weight_D.size(0);
  args.heads = x_NV.size(1) / args.dim;
  args.z_stride = z_NV.stride(0);
  args.eps = eps;
  args.type = element_type(x_NV.scalar_type());
  return args;
}

} // namespace

at::Tensor gated_norm_forward(const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps) {
  check(x_NV, z_NV, weight_D);
  at::Tensor y_NV = at::empty_like(x_NV);
  if (device::runs_on_cuda(x_NV)) {
    GatedNormArgs args = kernel_args(x_NV, z_NV, weight_D, eps);
    args.y = y_NV.mutable_data_ptr();
    run_kernel("gated_norm", launch_gated_norm_forward, args, x_NV.device());
  } else if (!x_NV.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_NV.scalar_type(), "gated_norm", [&] {
      forward_cpu<scalar_t>(x_NV, z_NV, weight_D, eps, y_NV);
    });
  }
  return y_NV;
}

at::Tensor gated_norm_backward(
    const at::Tensor& dy_NV, const at::Tensor& x_NV, const at::Tensor& z_NV, const at::Tensor& weight_D, double eps,
    at::Tensor& dz_NV, at::Tensor& grad_D) {
  check(x_NV, z_NV, weight_D);
  TORCH_CHECK(
      dy_NV.is_contiguous() && dy_NV.sizes() == x_NV.sizes() && dz_NV.sizes() == x_NV.sizes() && dz_NV.stride(1) == 1,
      "gated_norm: gradients of ", x_NV.sizes(), " are expected, found ", dy_NV.sizes(), " and ", dz_NV.sizes());
  const bool on_cuda = device::runs_on_cuda(x_NV);
  const int64_t blocks = (x_NV.size(0) + kGatedNormTokens - 1) / kGatedNormTokens;
  at::Tensor dx_NV = at::empty_like(x_NV);
  at::Tensor parts = at::zeros( // on CUDA for each head
      {blocks * (on_cuda ? x_NV.size(1) / weight_D.size(0) : 1), weight_D.size(0)},
      x_NV.options().dtype(x_NV.scalar_type() == at::kDouble ? at::kDouble : at::kFloat));
  if (on_cuda) {
    GatedNormArgs args = kernel_args(x_NV, z_NV, weight_D, eps);
    args.dy = dy_NV.const_data_ptr();
    args.dx = dx_NV.mutable_data_ptr();
    args.dz = dz_NV.mutable_data_ptr();
    args.dz_stride = dz_NV.stride(0);
    args.parts = parts.mutable_data_ptr();
    run_kernel("gated_norm_backward", launch_gated_norm_backward, args, x_NV.device());
  } else if (!x_NV.is_meta()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x_NV.scalar_type(), "gated_norm_backward", [&] {
      backward_cpu<scalar_t>(dy_NV, x_NV, z_NV, weight_D, eps, dx_NV, dz_NV, parts);
    });
  }
  if (grad_D.defined()) {
    grad_D.add_(parts.sum(0));
  }
  return dx_NV;
}

} // namespace distill::models
