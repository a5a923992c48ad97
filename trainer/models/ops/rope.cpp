#include "trainer/models/ops/rope.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <numbers>

#include "losses/vector_math.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/models/ops/rms_norm.h"
#include "trainer/models/ops/rope_kernel.h"

namespace distill::models {
namespace {

template <typename T>
void rotate_cpu(at::Tensor& x_NAD, const RopeAngles& angles, float direction) {
  using acc_t = at::opmath_type<T>;
  const int64_t heads = x_NAD.size(1);
  const int64_t half = x_NAD.size(2) / 2;
  const int64_t token_stride = x_NAD.stride(0);
  const int64_t head_stride = x_NAD.stride(1);
  const float* cos_all = angles.cos_NR.const_data_ptr<float>();
  const float* sin_all = angles.sin_NR.const_data_ptr<float>();
  T* data = x_NAD.mutable_data_ptr<T>();
  at::parallel_for(0, x_NAD.size(0), /*grain_size=*/8, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const float* cos = cos_all + n * half;
      const float* sin = sin_all + n * half;
      for (int64_t head = 0; head < heads; ++head) {
        T* low = data + n * token_stride + head * head_stride;
        T* high = low + half;
        for (int64_t i = 0; i < half; ++i) {
          const acc_t c = cos[i];
          const acc_t s = direction * sin[i];
          const acc_t a = static_cast<acc_t>(low[i]);
          const acc_t b = static_cast<acc_t>(high[i]);
          low[i] = static_cast<T>(a * c - b * s);
          high[i] = static_cast<T>(b * c + a * s);
        }
      }
    }
  });
}

void check_heads(const at::Tensor& x_NAD, const RopeAngles& angles) {
  TORCH_CHECK(
      x_NAD.dim() == 3 && x_NAD.size(2) % 2 == 0 && x_NAD.stride(2) == 1,
      "rope: [N, heads, head_dim] with an even, contiguous head_dim is expected, found sizes ", x_NAD.sizes(),
      ", strides ", x_NAD.strides());
  const int64_t half = x_NAD.size(2) / 2;
  for (const at::Tensor* table : {&angles.cos_NR, &angles.sin_NR}) {
    TORCH_CHECK(
        table->dim() == 2 && table->size(0) == x_NAD.size(0) && table->size(1) == half && table->is_contiguous() &&
            table->scalar_type() == at::kFloat,
        "rope: contiguous fp32 angles [", x_NAD.size(0), ", ", half, "] are expected, found ", table->sizes(),
        " of dtype ", table->scalar_type());
  }
}

// `in` may be `out`.
RopeHeads kernel_heads(const at::Tensor& in, const at::Tensor& out) {
  RopeHeads heads{};
  heads.in = in.const_data_ptr();
  heads.out = out.mutable_data_ptr();
  heads.heads = in.size(1);
  heads.in_token_stride = in.stride(0);
  heads.in_head_stride = in.stride(1);
  heads.out_token_stride = out.stride(0);
  heads.out_head_stride = out.stride(1);
  return heads;
}

// Sets all arguments but the heads.
RopeArgs kernel_args(const at::Tensor& x_NAD, const RopeAngles& angles) {
  RopeArgs args{};
  args.cos = angles.cos_NR.const_data_ptr<float>();
  args.sin = angles.sin_NR.const_data_ptr<float>();
  args.tokens = x_NAD.size(0);
  args.head_dim = x_NAD.size(2);
  args.type = element_type(x_NAD.scalar_type());
  return args;
}

void check_pair(const at::Tensor& q_NAD, const at::Tensor& k_NKD) {
  TORCH_CHECK(
      q_NAD.size(0) == k_NKD.size(0) && q_NAD.size(2) == k_NKD.size(2) && q_NAD.scalar_type() == k_NKD.scalar_type() &&
          q_NAD.device() == k_NKD.device(),
      "rope: q and k of the same tokens, head_dim, dtype and device are expected, found ", q_NAD.sizes(), " of dtype ",
      q_NAD.scalar_type(), " and ", k_NKD.sizes(), " of dtype ", k_NKD.scalar_type());
}

// `k` null: q alone.
void rotate(at::Tensor& q_NAD, at::Tensor* k_NKD, const RopeAngles& angles, float direction) {
  check_heads(q_NAD, angles);
  if (k_NKD != nullptr) {
    check_heads(*k_NKD, angles);
    check_pair(q_NAD, *k_NKD);
  }
  if (q_NAD.numel() == 0 || q_NAD.is_meta()) {
    return;
  }
  if (q_NAD.is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, q_NAD.scalar_type(), "rope", [&] {
      rotate_cpu<scalar_t>(q_NAD, angles, direction);
      if (k_NKD != nullptr) {
        rotate_cpu<scalar_t>(*k_NKD, angles, direction);
      }
    });
    return;
  }
  RopeArgs args = kernel_args(q_NAD, angles);
  args.q = kernel_heads(q_NAD, q_NAD);
  if (k_NKD != nullptr) {
    args.k = kernel_heads(*k_NKD, *k_NKD);
  }
  args.inverse = direction < 0;
  run_kernel("rope", launch_rope, args, q_NAD.device());
}

// RMSNorm over head_dim of every head; contiguous result, rstd [N * heads].
at::Tensor head_norm(const at::Tensor& x_NAD, const at::Tensor& weight_D, double eps, at::Tensor& rstd) {
  RmsNormResult result = rms_norm_forward(x_NAD.reshape({-1, x_NAD.size(2)}), weight_D, eps);
  rstd = result.rstd_N;
  return result.y_NH.view(x_NAD.sizes());
}

void check_norm(const at::Tensor& weight_D, const at::Tensor& x_NAD) {
  TORCH_CHECK(
      weight_D.dim() == 1 && weight_D.size(0) == x_NAD.size(2) && weight_D.is_contiguous() &&
          weight_D.scalar_type() == x_NAD.scalar_type(),
      "rope: a contiguous norm weight [", x_NAD.size(2), "] of dtype ", x_NAD.scalar_type(), " is expected, found ",
      weight_D.sizes(), " of dtype ", weight_D.scalar_type());
}

} // namespace

at::Tensor rope_inverse_frequencies(const RopeSpec& rope) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor exponents = at::arange(0, rope.dim, 2, fp32).div_(static_cast<double>(rope.dim));
  at::Tensor frequencies = at::reciprocal(at::pow(at::Scalar(rope.theta), exponents));
  if (rope.linear_factor != 1.0) {
    frequencies.div_(rope.linear_factor);
  }
  if (!rope.llama3) {
    return frequencies;
  }
  const Llama3RopeScaling& scaling = *rope.llama3;
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const double low_wavelength = context / scaling.low_freq_factor;
  const double high_wavelength = context / scaling.high_freq_factor;
  const at::Tensor wavelength = at::reciprocal(frequencies).mul_(2.0 * std::numbers::pi);
  const at::Tensor slowed = frequencies / scaling.factor;
  const at::Tensor smooth = at::reciprocal(wavelength)
                                .mul_(context)
                                .sub_(scaling.low_freq_factor)
                                .div_(scaling.high_freq_factor - scaling.low_freq_factor);
  const at::Tensor blended = (1.0 - smooth) * slowed + smooth * frequencies;
  return at::where(
      wavelength.gt(low_wavelength), slowed, at::where(wavelength.lt(high_wavelength), frequencies, blended));
}

RopeTable make_rope_table(const RopeSpec& rope, int64_t num_positions, at::Device device) {
  if (device.is_meta()) {
    const auto table = [&] { return at::empty({num_positions, rope.dim / 2}, at::dtype(at::kFloat).device(device)); };
    return {table(), table()};
  }
  losses::prepare_vector_math();
  const at::Tensor positions = at::arange(num_positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles_PR = at::outer(positions, rope_inverse_frequencies(rope));
  return {angles_PR.cos().to(device), angles_PR.sin().to(device)};
}

RopeAngles rope_angles(const RopeTable& table, const at::Tensor& positions_N) {
  return {table.cos_PR.index_select(0, positions_N), table.sin_PR.index_select(0, positions_N)};
}

std::vector<RopeTable> make_rope_tables(const std::vector<RopeSpec>& ropes, int64_t num_positions, at::Device device) {
  std::vector<RopeTable> tables;
  for (const RopeSpec& rope : ropes) {
    tables.push_back(make_rope_table(rope, num_positions, device));
  }
  return tables;
}

std::vector<RopeAngles> rope_angles(const std::vector<RopeTable>& tables, const at::Tensor& positions_N) {
  std::vector<RopeAngles> angles;
  for (const RopeTable& table : tables) {
    angles.push_back(rope_angles(table, positions_N));
  }
  return angles;
}

void rope_forward_(at::Tensor& x_NAD, const RopeAngles& angles) {
  rotate(x_NAD, /*k_NKD=*/nullptr, angles, 1.0F);
}

void rope_forward_(at::Tensor& q_NAD, at::Tensor& k_NKD, const RopeAngles& angles) {
  rotate(q_NAD, &k_NKD, angles, 1.0F);
}

void rope_backward_(at::Tensor& dx_NAD, const RopeAngles& angles) {
  rotate(dx_NAD, /*k_NKD=*/nullptr, angles, -1.0F);
}

void rope_backward_(at::Tensor& dq_NAD, at::Tensor& dk_NKD, const RopeAngles& angles) {
  rotate(dq_NAD, &dk_NKD, angles, -1.0F);
}

void rope_backward(
    const at::Tensor& dq_NAD, const at::Tensor& dk_NKD, at::Tensor& dq_out_NAD, at::Tensor& dk_out_NKD,
    const RopeAngles& angles) {
  TORCH_CHECK(
      dq_NAD.sizes() == dq_out_NAD.sizes() && dk_NKD.sizes() == dk_out_NKD.sizes() &&
          dq_NAD.scalar_type() == dq_out_NAD.scalar_type() && dk_NKD.scalar_type() == dk_out_NKD.scalar_type(),
      "rope: gradients of sizes ", dq_NAD.sizes(), " and ", dk_NKD.sizes(), " do not fit into ", dq_out_NAD.sizes(),
      " and ", dk_out_NKD.sizes());
  if (device::runs_on_cpu(dq_NAD)) {
    dq_out_NAD.copy_(dq_NAD);
    dk_out_NKD.copy_(dk_NKD);
    rope_backward_(dq_out_NAD, dk_out_NKD, angles);
    return;
  }
  for (const at::Tensor* x_NAD : std::initializer_list<const at::Tensor*>{&dq_NAD, &dk_NKD, &dq_out_NAD, &dk_out_NKD}) {
    check_heads(*x_NAD, angles);
  }
  check_pair(dq_NAD, dk_NKD);
  if (dq_NAD.numel() == 0) {
    return;
  }
  RopeArgs args = kernel_args(dq_NAD, angles);
  args.q = kernel_heads(dq_NAD, dq_out_NAD);
  args.k = kernel_heads(dk_NKD, dk_out_NKD);
  args.inverse = true;
  run_kernel("rope", launch_rope, args, dq_NAD.device());
}

NormRopeResult norm_rope_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& q_norm_D, const at::Tensor& k_norm_D,
    double eps, const RopeAngles& angles) {
  check_heads(q_NAD, angles);
  check_heads(k_NKD, angles);
  check_pair(q_NAD, k_NKD);
  check_norm(q_norm_D, q_NAD);
  check_norm(k_norm_D, k_NKD);
  NormRopeResult result;
  if (device::runs_on_cpu(q_NAD)) {
    result.q_NAD = head_norm(q_NAD, q_norm_D, eps, result.q_rstd);
    result.k_NKD = head_norm(k_NKD, k_norm_D, eps, result.k_rstd);
    rope_forward_(result.q_NAD, result.k_NKD, angles);
    return result;
  }
  const auto statistics = q_NAD.options().dtype(q_NAD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  result.q_NAD = at::empty(q_NAD.sizes(), q_NAD.options());
  result.k_NKD = at::empty(k_NKD.sizes(), k_NKD.options());
  result.q_rstd = at::empty({q_NAD.size(0) * q_NAD.size(1)}, statistics);
  result.k_rstd = at::empty({k_NKD.size(0) * k_NKD.size(1)}, statistics);
  if (q_NAD.numel() == 0) {
    return result;
  }
  RopeArgs args = kernel_args(q_NAD, angles);
  args.q = kernel_heads(q_NAD, result.q_NAD);
  args.q.norm_weight = q_norm_D.const_data_ptr();
  args.q.rstd = result.q_rstd.mutable_data_ptr();
  args.k = kernel_heads(k_NKD, result.k_NKD);
  args.k.norm_weight = k_norm_D.const_data_ptr();
  args.k.rstd = result.k_rstd.mutable_data_ptr();
  args.eps = eps;
  run_kernel("norm_rope", launch_norm_rope, args, q_NAD.device());
  return result;
}

} // namespace distill::models
