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

// Number of pairs of elements of a head that are rotated.
int64_t rotated_pairs(const RopeAngles& angles) {
  return angles.cos_NR.defined() ? angles.cos_NR.size(1) : 0;
}

template <typename T>
void rotate_cpu(at::Tensor& x_NAD, const RopeAngles& angles, float direction) {
  using acc_t = at::opmath_type<T>;
  const int64_t heads = x_NAD.size(1);
  const int64_t half = rotated_pairs(angles);
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
  const int64_t half = rotated_pairs(angles);
  TORCH_CHECK(
      x_NAD.dim() == 3 && x_NAD.size(2) % 2 == 0 && x_NAD.size(2) >= 2 * half && x_NAD.stride(2) == 1,
      "rope: [N, heads, head_dim] with an even, contiguous head_dim of at least ", 2 * half,
      " is expected, found sizes ", x_NAD.sizes(), ", strides ", x_NAD.strides());
  if (half == 0) {
    return;
  }
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
  args.rotary_dim = 2 * rotated_pairs(angles);
  if (args.rotary_dim > 0) {
    args.cos = angles.cos_NR.const_data_ptr<float>();
    args.sin = angles.sin_NR.const_data_ptr<float>();
  }
  if (angles.query_scale_N.defined()) {
    args.query_scale = angles.query_scale_N.const_data_ptr<float>();
  }
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
  if (q_NAD.numel() == 0 || q_NAD.is_meta() || rotated_pairs(angles) == 0) {
    return;
  }
  if (q_NAD.is_cpu()) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, q_NAD.scalar_type(), "rope", [&] {
      rotate_cpu<scalar_t>(q_NAD, angles, direction);
      if (k_NKD != nullptr) {
        rotate_cpu<scalar_t>(*k_NKD, angles, direction);
      }
    });
    if (k_NKD != nullptr && angles.query_scale_N.defined()) {
      q_NAD.mul_(angles.query_scale_N.to(q_NAD.scalar_type()).view({-1, 1, 1}));
    }
    return;
  }
  RopeArgs args = kernel_args(q_NAD, angles);
  args.q = kernel_heads(q_NAD, q_NAD);
  if (k_NKD != nullptr) {
    args.k = kernel_heads(*k_NKD, *k_NKD);
  } else {
    args.query_scale = nullptr;
  }
  args.inverse = direction < 0;
  run_kernel("rope", launch_rope, args, q_NAD.device());
}

// RMSNorm over as many elements as the weight has: those of every head, or of all heads of a token. Contiguous result,
// rstd [N * heads] or [N].
at::Tensor head_norm(const at::Tensor& x_NAD, const at::Tensor& weight, double eps, double offset, at::Tensor& rstd) {
  const at::Tensor rows = weight.numel() == x_NAD.size(2) ? x_NAD.reshape({-1, x_NAD.size(2)}) : x_NAD.flatten(1);
  RmsNormResult result = rms_norm_forward(rows, weight, eps, offset);
  rstd = result.rstd_N;
  return result.y_NH.view(x_NAD.sizes());
}

// The statistics of norms of heads.
at::Tensor empty_rstd(const at::Tensor& x_NAD) {
  const auto statistics = x_NAD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::empty({x_NAD.size(0) * x_NAD.size(1)}, x_NAD.options().dtype(statistics));
}

void check_norm(const at::Tensor& weight, const at::Tensor& x_NAD) {
  const int64_t head = x_NAD.size(2), all = x_NAD.size(1) * head;
  TORCH_CHECK(
      weight.dim() == 1 && (weight.size(0) == head || weight.size(0) == all) && weight.is_contiguous() &&
          weight.scalar_type() == x_NAD.scalar_type(),
      "rope: a contiguous norm weight [", head, "] or [", all, "] of dtype ", x_NAD.scalar_type(),
      " is expected, found ", weight.sizes(), " of dtype ", weight.scalar_type());
}

// YaRN's share of the frequencies that stay as they are, [R]: 1 for the quick ones, 0 for the slow ones, a ramp
// between.
at::Tensor yarn_kept(const YarnRopeScaling& scaling, double theta, int64_t dim) {
  const auto size = static_cast<double>(dim);
  const auto element = [&](double rotations) { // that makes so many rotations in the original context
    const auto context = static_cast<double>(scaling.original_max_position_embeddings);
    return size * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  double low = element(scaling.beta_fast), high = element(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, size - 1);
  high += low == high ? 0.001 : 0; // so that the quotient exists
  const at::Tensor ramp =
      at::arange(dim / 2, at::TensorOptions().dtype(at::kFloat)).sub_(low).div_(high - low).clamp_(0, 1);
  return 1 - ramp;
}

} // namespace

at::Tensor rope_inverse_frequencies(const RopeSpec& rope, bool is_long) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat);
  const at::Tensor exponents = at::arange(0, rope.dim, 2, fp32).div_(static_cast<double>(rope.dim));
  const at::Tensor wavelengths = at::pow(at::Scalar(rope.theta), exponents); // over 2 pi
  if (rope.longrope) {
    const std::vector<double>& factors = is_long ? rope.longrope->long_factors : rope.longrope->short_factors;
    return at::reciprocal(at::tensor(factors, fp32) * wavelengths);
  }
  at::Tensor frequencies = at::reciprocal(wavelengths);
  if (rope.turning_pairs) {
    frequencies.slice(0, *rope.turning_pairs).zero_();
  }
  if (rope.yarn) {
    const at::Tensor kept = yarn_kept(*rope.yarn, rope.theta, rope.dim);
    return at::reciprocal(wavelengths * rope.yarn->factor) * (1 - kept) + frequencies * kept;
  }
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
  RopeTable table;
  const bool has_long = rope.longrope && num_positions > rope.longrope->original_max_position_embeddings;
  table.long_after = has_long ? rope.longrope->original_max_position_embeddings : 0;
  const bool scales = rope.query_scaling && num_positions > rope.query_scaling->original_max_position_embeddings;
  if (device.is_meta()) {
    const auto options = at::dtype(at::kFloat).device(device);
    table.cos_PR = at::empty({(has_long ? 2 : 1) * num_positions, rope.dim / 2}, options);
    table.sin_PR = at::empty_like(table.cos_PR);
    table.query_scale_P = scales ? at::empty({num_positions}, options) : at::Tensor();
    return table;
  }
  losses::prepare_vector_math();
  const at::Tensor positions = at::arange(num_positions, at::TensorOptions().dtype(at::kFloat));
  at::Tensor angles_PR = at::outer(positions, rope_inverse_frequencies(rope));
  if (has_long) {
    angles_PR = at::cat({angles_PR, at::outer(positions, rope_inverse_frequencies(rope, /*is_long=*/true))});
  }
  table.cos_PR = angles_PR.cos().mul_(rope.attention_factor).to(device);
  table.sin_PR = angles_PR.sin().mul_(rope.attention_factor).to(device);
  if (scales) {
    const auto context = static_cast<double>(rope.query_scaling->original_max_position_embeddings);
    const at::Tensor log = at::log(1 + at::floor(positions / context));
    table.query_scale_P = (1 + rope.query_scaling->beta * log).to(device);
  }
  return table;
}

RopeAngles rope_angles(const RopeTable& table, const SequenceInfo& seq) {
  at::Tensor rows_N = seq.positions_N;
  if (table.long_after > 0 && seq.max_seqlen > table.long_after && !rows_N.is_meta()) {
    std::vector<int64_t> skipped(static_cast<size_t>(rows_N.numel())); // rows of short documents before a long one's
    for (size_t s = 0; s + 1 < seq.segments_host.size(); ++s) {
      const int64_t begin = seq.segments_host[s], end = seq.segments_host[s + 1];
      std::fill(
          skipped.begin() + begin, skipped.begin() + end,
          end - begin > table.long_after ? table.cos_PR.size(0) / 2 : 0);
    }
    const at::Tensor skipped_N = at::tensor(skipped, at::kLong);
    // From pinned memory, the host does not wait for the copy.
    rows_N =
        rows_N + (rows_N.is_cuda() ? skipped_N.pin_memory() : skipped_N).to(rows_N.device(), /*non_blocking=*/true);
  }
  return {
      table.cos_PR.index_select(0, rows_N), table.sin_PR.index_select(0, rows_N),
      table.query_scale_P.defined() ? table.query_scale_P.index_select(0, seq.positions_N) : at::Tensor()};
}

std::vector<RopeTable> make_rope_tables(const std::vector<RopeSpec>& ropes, int64_t num_positions, at::Device device) {
  std::vector<RopeTable> tables;
  for (const RopeSpec& rope : ropes) {
    tables.push_back(make_rope_table(rope, num_positions, device));
  }
  return tables;
}

std::vector<RopeAngles> rope_angles(const std::vector<RopeTable>& tables, const SequenceInfo& seq) {
  std::vector<RopeAngles> angles;
  for (const RopeTable& table : tables) {
    angles.push_back(rope_angles(table, seq));
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
  if (device::runs_on_cpu(dq_NAD) || rotated_pairs(angles) == 0) {
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
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& q_norm, const at::Tensor& k_norm, double eps,
    const RopeAngles& angles, double offset) {
  check_heads(q_NAD, angles);
  check_heads(k_NKD, angles);
  check_pair(q_NAD, k_NKD);
  check_norm(q_norm, q_NAD);
  check_norm(k_norm, k_NKD);
  NormRopeResult result;
  const int64_t head_dim = q_NAD.size(2);
  if (device::runs_on_cpu(q_NAD) || q_norm.numel() != head_dim || k_norm.numel() != head_dim) {
    result.q_NAD = head_norm(q_NAD, q_norm, eps, offset, result.q_rstd);
    result.k_NKD = head_norm(k_NKD, k_norm, eps, offset, result.k_rstd);
    rope_forward_(result.q_NAD, result.k_NKD, angles);
    return result;
  }
  result.q_NAD = at::empty(q_NAD.sizes(), q_NAD.options());
  result.k_NKD = at::empty(k_NKD.sizes(), k_NKD.options());
  result.q_rstd = empty_rstd(q_NAD);
  result.k_rstd = empty_rstd(k_NKD);
  if (q_NAD.numel() == 0) {
    return result;
  }
  RopeArgs args = kernel_args(q_NAD, angles);
  args.q = kernel_heads(q_NAD, result.q_NAD);
  args.q.norm_weight = q_norm.const_data_ptr();
  args.q.rstd = result.q_rstd.mutable_data_ptr();
  args.k = kernel_heads(k_NKD, result.k_NKD);
  args.k.norm_weight = k_norm.const_data_ptr();
  args.k.rstd = result.k_rstd.mutable_data_ptr();
  args.eps = eps;
  args.norm_offset = offset;
  run_kernel("norm_rope", launch_norm_rope, args, q_NAD.device());
  return result;
}

HeadNormResult head_rms_norm_forward(const at::Tensor& x_NAD, const at::Tensor& weight_D, double eps) {
  check_heads(x_NAD, /*angles=*/{});
  check_norm(weight_D, x_NAD);
  HeadNormResult result;
  if (device::runs_on_cpu(x_NAD)) {
    result.y_NAD = head_norm(x_NAD, weight_D, eps, /*offset=*/0, result.rstd);
    return result;
  }
  result.y_NAD = at::empty(x_NAD.sizes(), x_NAD.options());
  result.rstd = empty_rstd(x_NAD);
  if (x_NAD.numel() == 0) {
    return result;
  }
  RopeArgs args = kernel_args(x_NAD, /*angles=*/{}); // heads of q alone, which nothing rotates
  args.q = kernel_heads(x_NAD, result.y_NAD);
  args.q.norm_weight = weight_D.const_data_ptr();
  args.q.rstd = result.rstd.mutable_data_ptr();
  args.eps = eps;
  run_kernel("head_rms_norm", launch_norm_rope, args, x_NAD.device());
  return result;
}

} // namespace distill::models
