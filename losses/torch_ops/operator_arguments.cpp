#include "losses/torch_ops/operator_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <variant>

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <c10/core/GradMode.h>

#include "losses/checks.h"
#include "losses/option_ranges.h"

namespace distill::losses {

at::Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

OptionalTensor or_none(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

namespace {

using Option = std::variant<
    Divergence LossOptions::*, double LossOptions::*, bool LossOptions::*, LogitsDtype LossOptions::*,
    MetricSet LossOptions::*>;

struct OptionArgument {
  std::string_view name;
  Option option;
};

// The order is that of the schemas and of the inner operators' lists.
constexpr std::array kOptionArguments{
    OptionArgument{"divergence", &LossOptions::divergence},
    OptionArgument{"beta", &LossOptions::beta},
    OptionArgument{"skew_alpha", &LossOptions::skew_alpha},
    OptionArgument{"temperature", &LossOptions::temperature},
    OptionArgument{"scale_by_temperature_squared", &LossOptions::scale_by_temperature_squared},
    OptionArgument{"hard_weight", &LossOptions::hard_weight},
    OptionArgument{"soft_weight", &LossOptions::soft_weight},
    OptionArgument{"label_smoothing", &LossOptions::label_smoothing},
    OptionArgument{"z_loss", &LossOptions::z_loss},
    OptionArgument{"student_softcap", &LossOptions::student_softcap},
    OptionArgument{"teacher_softcap", &LossOptions::teacher_softcap},
    OptionArgument{"bf16_logits", &LossOptions::logits_dtype},
    OptionArgument{"metrics", &LossOptions::metrics},
};
// A cross-entropy has only one model, whose cap needs no further name.
constexpr OptionArgument kOnlySoftcap{"softcap", &LossOptions::student_softcap};

std::string declaration(std::string_view name, double value) {
  return absl::StrFormat("float %s=%.17g, ", name, value);
}
std::string declaration(std::string_view name, bool value) {
  return absl::StrFormat("bool %s=%s, ", name, value ? "True" : "False");
}
std::string declaration(std::string_view name, LogitsDtype value) {
  return declaration(name, value == LogitsDtype::kBFloat16);
}
template <base::NamedEnum Enum>
std::string declaration(std::string_view name, Enum value) {
  return absl::StrFormat("str %s='%s', ", name, base::enum_name(value));
}
std::string declaration(const OptionArgument& argument, const LossOptions& defaults) {
  return std::visit([&](auto option) { return declaration(argument.name, defaults.*option); }, argument.option);
}

void read(std::string_view, const c10::IValue& value, double& option) {
  option = value.toDouble();
}
void read(std::string_view, const c10::IValue& value, bool& option) {
  option = value.toBool();
}
void read(std::string_view, const c10::IValue& value, LogitsDtype& option) {
  option = value.toBool() ? LogitsDtype::kBFloat16 : LogitsDtype::kFloat32;
}
template <base::NamedEnum Enum>
void read(std::string_view name, const c10::IValue& value, Enum& option) {
  const std::optional<Enum> found = base::enum_named<Enum>(value.toStringView());
  TORCH_CHECK(found, name, ": expected ", base::enum_choices<Enum>(), ", found ", value.toStringView());
  option = *found;
}

} // namespace

std::string declared(std::string_view first, std::string_view last, const LossOptions& defaults) {
  const auto named = [](std::string_view name) { return [=](const OptionArgument& a) { return a.name == name; }; };
  auto it = std::ranges::find_if(kOptionArguments, named(first));
  const auto end = std::next(std::ranges::find_if(kOptionArguments, named(last)));
  std::string text;
  for (; it != end; ++it) {
    text += declaration(*it, defaults);
  }
  return text;
}

std::string declared_soft_options() {
  return declared("divergence", "teacher_softcap") + declared("metrics", "metrics");
}

std::string declared_hard_options() {
  return declared("label_smoothing", "z_loss") + declaration(kOnlySoftcap, {}) + declared("metrics", "metrics");
}

std::string declared_reduction() {
  return "str reduction='mean', float? num_tokens=None";
}

std::string declared_chunks() {
  return absl::StrJoin(kIntegerOptions, ", ", [](std::string* out, const IntegerOption& option) {
    absl::StrAppend(out, "int ", option.key, "=", ChunkOptions{}.*option.value);
  });
}

std::string declared_sizes() {
  const HeadSizes sizes;
  return absl::StrCat(
      "int vocab_size=", sizes.vocab_size, ", int valid_tokens=", sizes.valid_tokens, ", ", declared_chunks(), ", ",
      absl::StripSuffix(declared("bf16_logits", "bf16_logits"), ", "));
}

std::vector<double> options_list(const LossOptions& options) {
  std::vector<double> list;
  list.reserve(kOptionArguments.size());
  for (const OptionArgument& argument : kOptionArguments) {
    list.push_back(std::visit([&](auto option) { return static_cast<double>(options.*option); }, argument.option));
  }
  return list;
}

LossOptions options_from(at::ArrayRef<double> list) {
  constexpr size_t kCount = kOptionArguments.size();
  TORCH_CHECK(list.size() == kCount, "distill: expected ", kCount, " loss options, found ", list.size());
  LossOptions options;
  for (size_t i = 0; i < kCount; ++i) {
    const auto set = [&](auto option) {
      using Value = std::remove_reference_t<decltype(options.*option)>;
      if constexpr (std::is_enum_v<Value>) {
        options.*option = static_cast<Value>(static_cast<int>(list[i]));
      } else {
        options.*option = static_cast<Value>(list[i]);
      }
    };
    std::visit(set, kOptionArguments[i].option);
  }
  return options;
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

const c10::IValue* OperatorCall::find(std::string_view name) const {
  const std::optional<int> index = schema_.argumentIndexWithName(name);
  return index.has_value() ? &values_[static_cast<size_t>(*index)] : nullptr;
}

LossOptions OperatorCall::loss_options(LossOptions otherwise) const {
  const auto take = [&](const OptionArgument& argument) {
    if (const c10::IValue* value = find(argument.name)) {
      std::visit([&](auto option) { read(argument.name, *value, otherwise.*option); }, argument.option);
    }
  };
  std::ranges::for_each(kOptionArguments, take);
  take(kOnlySoftcap);
  return otherwise;
}

HeadSizes OperatorCall::head_sizes() const {
  HeadSizes sizes;
  sizes.vocab_size = get("vocab_size", sizes.vocab_size);
  sizes.valid_tokens = get("valid_tokens", sizes.valid_tokens);
  for (const IntegerOption& option : kIntegerOptions) {
    sizes.chunks.*option.value = get(option.key, sizes.chunks.*option.value);
  }
  return sizes;
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

namespace {

at::Tensor reduced_loss(
    const at::Tensor& loss_N, const OptionalTensor& targets_N, std::string_view reduction,
    std::optional<double> num_tokens) {
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
  if (!targets_N.has_value()) {
    // The number of tokens is a tensor: a compiled graph would hold only for one number on the host.
    return loss_N.sum() / at::ones_like(loss_N, at::kLong).sum().clamp_min(1);
  }
  return loss_N.sum() / targets_N->ne(kIgnoreIndex).sum().clamp_min(1);
}

} // namespace

std::tuple<at::Tensor, at::Tensor> loss_and_metrics(const OperatorCall& call, const at::Tensor& metrics_MN) {
  const auto reduction = call.get<std::string>("reduction", "mean");
  const auto num_tokens = call.get<std::optional<double>>("num_tokens", std::nullopt);
  return {
      reduced_loss(metrics_MN.select(0, kLoss), call.optional("targets"), reduction, num_tokens), metrics_MN.detach()};
}

} // namespace distill::losses
