#include "losses/torch_ops/operator_arguments.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "losses/checks.h"

namespace distill::losses {

at::Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

OptionalTensor or_none(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

Divergence divergence_named(std::string_view name) {
  const std::optional<Divergence> divergence = base::enum_named<Divergence>(name);
  TORCH_CHECK(divergence, "divergence: expected ", base::enum_choices<Divergence>(), ", found ", name);
  return *divergence;
}

MetricSet metrics_named(std::string_view name) {
  const std::optional<MetricSet> metrics = base::enum_named<MetricSet>(name);
  TORCH_CHECK(metrics, "metrics: expected ", base::enum_choices<MetricSet>(), ", found ", name);
  return *metrics;
}

std::vector<double> options_list(const LossOptions& o) {
  return {
      static_cast<double>(o.divergence),
      o.beta,
      o.skew_alpha,
      o.temperature,
      o.scale_by_temperature_squared ? 1.0 : 0.0,
      o.hard_weight,
      o.soft_weight,
      o.label_smoothing,
      o.z_loss,
      o.student_softcap,
      o.teacher_softcap,
      o.logits_dtype == LogitsDtype::kBFloat16 ? 1.0 : 0.0,
      static_cast<double>(o.metrics)};
}

LossOptions options_from(at::ArrayRef<double> list) {
  TORCH_CHECK(list.size() == 13, "distill: expected 13 loss options, found ", list.size());
  return {
      .divergence = static_cast<Divergence>(static_cast<int>(list[0])),
      .beta = list[1],
      .skew_alpha = list[2],
      .temperature = list[3],
      .scale_by_temperature_squared = list[4] != 0,
      .hard_weight = list[5],
      .soft_weight = list[6],
      .label_smoothing = list[7],
      .z_loss = list[8],
      .student_softcap = list[9],
      .teacher_softcap = list[10],
      .logits_dtype = list[11] != 0 ? LogitsDtype::kBFloat16 : LogitsDtype::kFloat32,
      .metrics = static_cast<MetricSet>(static_cast<int>(list[12]))};
}

std::vector<int64_t> sizes_list(const HeadSizes& sizes) {
  return {
      sizes.vocab_size, sizes.valid_tokens, sizes.chunks.chunk_size, sizes.chunks.memory_cap_mb,
      sizes.chunks.min_chunk_size};
}

HeadSizes sizes_from(at::IntArrayRef list) {
  TORCH_CHECK(list.size() == 5, "distill: expected 5 sizes, found ", list.size());
  return {
      .vocab_size = list[0],
      .valid_tokens = list[1],
      .chunks = {.chunk_size = list[2], .memory_cap_mb = list[3], .min_chunk_size = list[4]}};
}

LossOptions soft_options(
    std::string_view divergence, double beta, double skew_alpha, double temperature, bool scale_by_temperature_squared,
    double hard_weight, double soft_weight, double label_smoothing, double z_loss, double student_softcap,
    double teacher_softcap, std::string_view metrics) {
  return {
      .divergence = divergence_named(divergence),
      .beta = beta,
      .skew_alpha = skew_alpha,
      .temperature = temperature,
      .scale_by_temperature_squared = scale_by_temperature_squared,
      .hard_weight = hard_weight,
      .soft_weight = soft_weight,
      .label_smoothing = label_smoothing,
      .z_loss = z_loss,
      .student_softcap = student_softcap,
      .teacher_softcap = teacher_softcap,
      .metrics = metrics_named(metrics)};
}

LossOptions hard_options(double label_smoothing, double z_loss, double softcap, std::string_view metrics) {
  return {
      .divergence = Divergence::kNone,
      .hard_weight = 1,
      .soft_weight = 0,
      .label_smoothing = label_smoothing,
      .z_loss = z_loss,
      .student_softcap = softcap,
      .metrics = metrics_named(metrics)};
}

at::TensorOptions sum_options(const at::Tensor& tensor) {
  return tensor.options().dtype(compute_type(tensor.scalar_type())).requires_grad(false);
}

void keep_for_backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list tensors) {
  c10::Dict<int64_t, at::Tensor> constants;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && tensors[i].is_inference()) {
      constants.insert(static_cast<int64_t>(i), tensors[i]);
      tensors[i] = at::Tensor();
    }
  }
  ctx->saved_data["constants"] = constants;
  ctx->save_for_backward(std::move(tensors));
}

torch::autograd::variable_list kept_for_backward(torch::autograd::AutogradContext* ctx) {
  torch::autograd::variable_list tensors = ctx->get_saved_variables();
  for (const auto& constant :
       c10::impl::toTypedDict<int64_t, at::Tensor>(ctx->saved_data["constants"].toGenericDict())) {
    tensors[constant.key()] = constant.value();
  }
  return tensors;
}

void refuse_second_derivative() {
  TORCH_CHECK(
      !c10::GradMode::is_enabled(),
      "distill: these losses have no second derivative; expected create_graph=False, found "
      "a backward pass that records a graph");
}

at::Tensor reduced_loss(
    const at::Tensor& metrics_MN, const at::Tensor& targets_N, std::string_view reduction,
    std::optional<double> num_tokens) {
  const at::Tensor loss_N = metrics_MN.select(0, kLoss);
  if (reduction == "none") {
    return loss_N;
  }
  TORCH_CHECK(reduction == "sum" || reduction == "mean", "reduction: expected none, sum or mean, found ", reduction);
  TORCH_CHECK(
      !num_tokens.has_value() || (*num_tokens >= 0 && std::isfinite(*num_tokens)),
      "num_tokens: expected a finite number of at least 0, found ", *num_tokens);
  if (reduction == "sum") {
    return loss_N.sum();
  }
  if (num_tokens.has_value()) {
    return *num_tokens == 0 ? loss_N.sum() * 0 : loss_N.sum() / *num_tokens;
  }
  if (!targets_N.defined()) {
    // The number of tokens as a tensor: a compiled graph would hold only for one number on the host.
    return loss_N.sum() / at::ones_like(loss_N, at::kLong).sum().clamp_min(1);
  }
  return loss_N.sum() / targets_N.ne(kIgnoreIndex).sum().clamp_min(1);
}

} // namespace distill::losses
