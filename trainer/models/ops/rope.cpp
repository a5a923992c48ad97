#include "trainer/models/ops/rope.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>

#include <numbers>

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

void rotate(at::Tensor& x_NAD, const RopeAngles& angles, float direction) {
  TORCH_CHECK(
      x_NAD.dim() == 3 && x_NAD.size(2) % 2 == 0 && x_NAD.stride(2) == 1,
      "rope: [N, heads, head_dim] with an even, contiguous head_dim is expected, found sizes ", x_NAD.sizes(),
      ", strides ", x_NAD.strides());
  const int64_t half = x_NAD.size(2) / 2;
  TORCH_CHECK(
      angles.cos_NR.size(0) == x_NAD.size(0) && angles.cos_NR.size(1) == half, "rope: angles [", x_NAD.size(0), ", ",
      half, "] are expected, found ", angles.cos_NR.sizes());
  if (x_NAD.is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, x_NAD.scalar_type(), "rope", [&] { rotate_cpu<scalar_t>(x_NAD, angles, direction); });
    return;
  }
  at::Tensor low = x_NAD.narrow(2, 0, half);
  at::Tensor high = x_NAD.narrow(2, half, half);
  const at::Tensor cos = angles.cos_NR.unsqueeze(1);
  const at::Tensor sin = (direction < 0 ? angles.sin_NR.neg() : angles.sin_NR).unsqueeze(1);
  const at::Tensor rotated_low = at::mul(low, cos).sub_(at::mul(high, sin));
  const at::Tensor rotated_high = at::mul(high, cos).add_(at::mul(low, sin));
  low.copy_(rotated_low);
  high.copy_(rotated_high);
}

} // namespace

at::Tensor rope_inverse_frequencies(const ModelConfig& config) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor exponents = at::arange(0, config.head_dim, 2, fp32).div_(static_cast<double>(config.head_dim));
  at::Tensor frequencies = at::reciprocal(at::pow(at::Scalar(config.rope_theta), exponents));
  if (config.rope_linear_factor != 1.0) {
    frequencies.div_(config.rope_linear_factor);
  }
  if (!config.rope_scaling) {
    return frequencies;
  }
  const Llama3RopeScaling& scaling = *config.rope_scaling;
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

RopeTable make_rope_table(const ModelConfig& config, int64_t num_positions, at::Device device) {
  const at::Tensor positions = at::arange(num_positions, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor angles_PR = at::outer(positions, rope_inverse_frequencies(config));
  return {angles_PR.cos().to(device), angles_PR.sin().to(device)};
}

RopeAngles rope_angles(const RopeTable& table, const at::Tensor& positions_N) {
  return {table.cos_PR.index_select(0, positions_N), table.sin_PR.index_select(0, positions_N)};
}

void rope_forward_(at::Tensor& x_NAD, const RopeAngles& angles) {
  rotate(x_NAD, angles, 1.0F);
}

void rope_backward_(at::Tensor& dx_NAD, const RopeAngles& angles) {
  rotate(dx_NAD, angles, -1.0F);
}

} // namespace distill::models
