// These operators start from hidden states. docs/loss_head.md documents them.
//
// The public operators are composites around inner operators with kernels and shape functions; autograd's node sits
// between, so that torch.compile sees only operators it can trace.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "losses/torch_ops/operator_arguments.h"

namespace distill::losses {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

LinearHeadInputs inputs_of(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& teacher_hidden,
    const OptionalTensor& teacher_weight, const OptionalTensor& targets, const OptionalTensor& bias,
    const OptionalTensor& teacher_bias, const OptionalTensor& token_weights, const OptionalTensor& ids,
    const OptionalTensor& values, const OptionalTensor& tail, double teacher_temperature, const HeadSizes& sizes) {
  const bool topk = tail.has_value();
  const at::Tensor none;
  return {
      .hidden_NH = hidden,
      .weight_VH = weight,
      .bias_V = or_undefined(bias),
      .teacher_hidden_NG = or_undefined(teacher_hidden),
      .teacher_weight_VG = or_undefined(teacher_weight),
      .teacher_bias_V = or_undefined(teacher_bias),
      .topk_ids_NK = topk ? or_undefined(ids) : none,
      .topk_log_probs_NK = topk ? or_undefined(values) : none,
      .tail_N = or_undefined(tail),
      .sample_ids_NS = topk ? none : or_undefined(ids),
      .sample_weights_NS = topk ? none : or_undefined(values),
      .teacher_temperature = teacher_temperature,
      .targets_N = or_undefined(targets),
      .token_weights_N = or_undefined(token_weights),
      .vocab_size = sizes.vocab_size,
      .valid_tokens = sizes.valid_tokens};
}

// Returns the metrics, and the gradients of sum(metrics[0]): hidden's, weight's (fp32) and bias's (fp32), empty where
// not `needed`.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_head_kernel(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& teacher_hidden,
    const OptionalTensor& teacher_weight, const OptionalTensor& targets, const OptionalTensor& bias,
    const OptionalTensor& teacher_bias, const OptionalTensor& token_weights, at::ArrayRef<double> options,
    at::IntArrayRef sizes_as_list, at::IntArrayRef needed, const OptionalTensor& teacher_ids,
    const OptionalTensor& teacher_values, const OptionalTensor& teacher_tail, double teacher_temperature) {
  // Autocast would round the head's fp32 products, of which it knows nothing, to its own type.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const HeadSizes sizes = sizes_from(sizes_as_list);
  const LinearHeadInputs in = inputs_of(
      hidden, weight, teacher_hidden, teacher_weight, targets, bias, teacher_bias, token_weights, teacher_ids,
      teacher_values, teacher_tail, teacher_temperature, sizes);
  // This makes a new tensor each time: no output of an operator may be another one.
  const auto none = [&] { return at::empty({0}, sum_options(hidden)); };
  if (needed[0] == 0 && needed[1] == 0 && needed[2] == 0) {
    return {linear_head(in, options_from(options), sizes.chunks, nullptr).metrics_MN, none(), none(), none()};
  }
  LinearHeadGrads grads;
  grads.hidden_NH = needed[0] != 0 ? at::empty(hidden.sizes(), hidden.options().requires_grad(false)) : at::Tensor();
  grads.weight_VH = needed[1] != 0 ? at::empty(weight.sizes(), sum_options(hidden)) : at::Tensor();
  grads.bias_V = needed[2] != 0 ? at::empty(bias->sizes(), sum_options(hidden)) : at::Tensor();
  grads.accumulate = false;
  const at::Tensor metrics = linear_head(in, options_from(options), sizes.chunks, &grads).metrics_MN;
  const auto made = [&](size_t i, const at::Tensor& gradient) { return needed[i] != 0 ? gradient : none(); };
  return {metrics, made(0, grads.hidden_NH), made(1, grads.weight_VH), made(2, grads.bias_V)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_head_meta(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor& bias, const OptionalTensor&, const OptionalTensor&,
    at::ArrayRef<double>, at::IntArrayRef, at::IntArrayRef needed, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, double) {
  const auto none = [&] { return at::empty({0}, sum_options(hidden)); };
  return {
      at::empty_symint({c10::SymInt(kNumTokenMetrics), hidden.sym_size(0)}, sum_options(hidden)),
      needed[0] != 0 ? at::empty_symint(hidden.sym_sizes(), hidden.options()) : none(),
      needed[1] != 0 ? at::empty_symint(weight.sym_sizes(), sum_options(hidden)) : none(),
      needed[2] != 0 ? at::empty_symint(bias->sym_sizes(), sum_options(hidden)) : none()};
}

at::Tensor linear_head_into_kernel(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& teacher_hidden,
    const OptionalTensor& teacher_weight, const OptionalTensor& targets, const OptionalTensor& token_weights,
    at::ArrayRef<double> options, at::IntArrayRef sizes_as_list, double grad_scale, bool accumulate,
    at::Tensor hidden_gradient, const OptionalTensor& weight_gradient, const OptionalTensor& arena,
    const OptionalTensor& teacher_ids, const OptionalTensor& teacher_values, const OptionalTensor& teacher_tail,
    double teacher_temperature) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const HeadSizes sizes = sizes_from(sizes_as_list);
  LinearHeadGrads grads{
      .hidden_NH = std::move(hidden_gradient),
      .weight_VH = or_undefined(weight_gradient),
      .bias_V = {},
      .grad_scale = grad_scale,
      .accumulate = accumulate};
  const LinearHeadInputs in = inputs_of(
      hidden, weight, teacher_hidden, teacher_weight, targets, std::nullopt, std::nullopt, token_weights, teacher_ids,
      teacher_values, teacher_tail, teacher_temperature, sizes);
  return linear_head(in, options_from(options), sizes.chunks, &grads, or_undefined(arena)).metrics_MN;
}

at::Tensor linear_head_into_meta(
    const at::Tensor& hidden, const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, at::ArrayRef<double>, at::IntArrayRef, double, bool, at::Tensor, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, double) {
  return at::empty_symint({c10::SymInt(kNumTokenMetrics), hidden.sym_size(0)}, sum_options(hidden));
}

auto call_linear_head() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("distill::_linear_head", "").typed<decltype(linear_head_kernel)>();
  return op;
}

auto call_linear_head_into() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("distill::_linear_head_into", "")
                             .typed<decltype(linear_head_into_kernel)>();
  return op;
}

// Multiplies out of place: the saved gradient stays, so a second backward pass gives the same. The scale never reaches
// the host.
// It has one dimension, so that it counts in type promotion: CUDA would round a scalar to a bf16 gradient's type.
at::Tensor scaled(const at::Tensor& gradient, const at::Tensor& scale, at::ScalarType type) {
  at::Tensor out = at::empty_like(gradient, gradient.options().dtype(type));
  return at::mul_out(out, gradient, scale.reshape({1}));
}

// Returns which of hidden, weight and bias want a gradient.
std::vector<int64_t> needed_gradients(const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias) {
  const bool enabled = c10::GradMode::is_enabled();
  return {
      enabled && hidden.requires_grad() ? 1 : 0, enabled && weight.requires_grad() ? 1 : 0,
      enabled && bias.has_value() && bias->requires_grad() ? 1 : 0};
}

// This function maps a linear head to metrics, differentiable in hidden, weight and bias through metrics[0].
class LinearHeadFunction : public torch::autograd::Function<LinearHeadFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias,
      const OptionalTensor& teacher_hidden, const OptionalTensor& teacher_weight, const OptionalTensor& targets,
      const OptionalTensor& teacher_bias, const OptionalTensor& token_weights, std::vector<double> options,
      std::vector<int64_t> sizes, bool per_token, std::vector<int64_t> needed, const OptionalTensor& teacher_ids,
      const OptionalTensor& teacher_values, const OptionalTensor& teacher_tail, double teacher_temperature) {
    // With reduction none any gradient may come back for each token, so the backward pass computes the gradients.
    const std::vector<int64_t> now = per_token ? std::vector<int64_t>(3) : needed;
    const auto [metrics, hidden_gradient, weight_gradient, bias_gradient] = call_linear_head().call(
        hidden, weight, teacher_hidden, teacher_weight, targets, bias, teacher_bias, token_weights, options, sizes, now,
        teacher_ids, teacher_values, teacher_tail, teacher_temperature);
    if (per_token) {
      keep_for_backward(
          ctx,
          {hidden, weight, or_undefined(bias), or_undefined(teacher_hidden), or_undefined(teacher_weight),
           or_undefined(targets), or_undefined(teacher_bias), or_undefined(token_weights), or_undefined(teacher_ids),
           or_undefined(teacher_values), or_undefined(teacher_tail)});
    } else {
      keep_for_backward(ctx, {hidden_gradient, weight_gradient, bias_gradient});
    }
    ctx->saved_data["options"] = options;
    ctx->saved_data["sizes"] = sizes;
    ctx->saved_data["teacher_temperature"] = teacher_temperature;
    ctx->saved_data["per_token"] = per_token;
    ctx->saved_data["needed"] = needed;
    ctx->saved_data["type"] = static_cast<int64_t>(weight.scalar_type());
    return metrics;
  }

  // The composite below reduces metrics[0] by a sum, so without `per_token` every entry of the incoming gradient's
  // first row is one and the same scale.
  static variable_list backward(AutogradContext* ctx, const variable_list& incoming) {
    refuse_second_derivative();
    const variable_list saved = kept_for_backward(ctx);
    const auto needed = ctx->saved_data["needed"].toIntVector();
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    at::Tensor scale;
    variable_list gradients;
    if (ctx->saved_data["per_token"].toBool()) {
      const at::Tensor per_token = incoming[0].select(0, kLoss);
      const at::Tensor weights = (saved[7].defined() ? saved[7] * per_token : per_token).contiguous();
      const std::array<int64_t, 3> now{needed[0], needed[1], needed[2]};
      const auto [metrics, h, w, b] = call_linear_head().call(
          saved[0], saved[1], or_none(saved[3]), or_none(saved[4]), or_none(saved[5]), or_none(saved[2]),
          or_none(saved[6]), weights, ctx->saved_data["options"].toDoubleVector(),
          ctx->saved_data["sizes"].toIntVector(), now, or_none(saved[8]), or_none(saved[9]), or_none(saved[10]),
          ctx->saved_data["teacher_temperature"].toDouble());
      gradients = {h, w, b};
    } else {
      gradients = {saved[0], saved[1], saved[2]};
      // All tokens have the first one's; for no tokens an empty sum gives 0.
      scale = incoming[0].select(0, kLoss).slice(0, 0, 1).sum();
    }
    variable_list out(16);
    for (size_t i = 0; i < 3; ++i) {
      if (needed[i] != 0) {
        out[i] = scale.defined() ? scaled(gradients[i], scale, type) : gradients[i].to(type);
      }
    }
    return out;
  }
};

using LossAndMetrics = std::tuple<at::Tensor, at::Tensor>;

// An operator lacks the arguments of the other kinds of teacher. Of a teacher of which a few tokens are known, top-k
// has a tail and samples have none.
LossAndMetrics linear_loss(const OperatorCall& call, const LossOptions& otherwise) {
  const at::Tensor hidden = call.tensor("hidden");
  const at::Tensor weight = call.tensor("weight");
  const OptionalTensor bias = call.optional("bias");
  const OptionalTensor tail = call.optional("tail");
  const at::Tensor metrics = LinearHeadFunction::apply(
      hidden, weight, bias, call.optional("teacher_hidden"), call.optional("teacher_weight"), call.optional("targets"),
      call.optional("teacher_bias"), call.optional("token_weights"), options_list(call.loss_options(otherwise)),
      sizes_list(call.head_sizes()), call.get<std::string>("reduction", "mean") == "none",
      needed_gradients(hidden, weight, bias), call.optional("ids"),
      call.optional(tail.has_value() ? "log_probs" : "weights"), tail, call.get("teacher_temperature", 1.0));
  return loss_and_metrics(call, metrics);
}

LossAndMetrics linear_distillation(const OperatorCall& call) {
  return linear_loss(call, {});
}

LossAndMetrics linear_cross_entropy(const OperatorCall& call) {
  return linear_loss(call, kHardLabels);
}

LossAndMetrics linear_sampled(const OperatorCall& call) {
  return linear_loss(call, {.divergence = Divergence::kForwardKl, .beta = 0, .skew_alpha = 0});
}

// This is a trainer's form: gradients go where the caller says, without autograd.
std::tuple<at::Tensor> linear_head_into(const OperatorCall& call) {
  return call_linear_head_into().call(
      call.tensor("hidden"), call.tensor("weight"), call.optional("teacher_hidden"), call.optional("teacher_weight"),
      call.optional("targets"), call.optional("token_weights"), options_list(call.loss_options({})),
      sizes_list(call.head_sizes()), call.get("grad_scale", 1.0), call.get("accumulate", true),
      call.tensor("hidden_gradient"), call.optional("weight_gradient"), call.optional("arena"),
      call.optional("teacher_ids"), call.optional("teacher_values"), call.optional("teacher_tail"),
      call.get("teacher_temperature", 1.0));
}

// The inner operators have one form of a teacher of a few tokens: top-k where there is a tail, otherwise samples.
constexpr const char* kEntries =
    "Tensor? teacher_ids=None, Tensor? teacher_values=None, Tensor? teacher_tail=None, float teacher_temperature=1.0";

// Defines `name`(`inputs`, and what every linear loss has). `options` are the declarations of its options.
void define_linear_loss(
    torch::Library& m, const std::string& name, const std::string& inputs, const std::string& options,
    torch::CppFunction function) {
  const std::string shared = declared_reduction() + ", " + declared_sizes();
  m.def(
      (name + "(Tensor hidden, Tensor weight, " + inputs + options + shared + ") -> (Tensor, Tensor)").c_str(),
      std::move(function));
}

} // namespace

TORCH_LIBRARY_FRAGMENT(distill, m)
{
  const std::string entries = kEntries;
  m.def(("_linear_head(Tensor hidden, Tensor weight, Tensor? teacher_hidden, Tensor? teacher_weight, Tensor? targets, "
         "Tensor? bias, Tensor? teacher_bias, Tensor? token_weights, float[] options, int[] sizes, int[] needed, " +
         entries + ") -> (Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("_linear_head_into(Tensor hidden, Tensor weight, Tensor? teacher_hidden, Tensor? teacher_weight, "
         "Tensor? targets, Tensor? token_weights, float[] options, int[] sizes, float grad_scale, bool accumulate, "
         "Tensor(a!) hidden_gradient, Tensor(b!)? weight_gradient, Tensor(c!)? arena, " +
         entries + ") -> Tensor")
            .c_str());
  m.def(
      ("linear_head_into(Tensor hidden, Tensor weight, Tensor? teacher_hidden, Tensor? teacher_weight, "
       "Tensor? targets, *, Tensor(a!) hidden_gradient, Tensor(b!)? weight_gradient=None, Tensor? token_weights=None, "
       "float grad_scale=1.0, bool accumulate=True, Tensor(c!)? arena=None, " +
       declared_soft_options() + declared_sizes() + ", " + entries + ") -> Tensor")
          .c_str(),
      torch::CppFunction::makeFromBoxedFunction<boxed<linear_head_into>>());

  const std::string weights = "*, Tensor? bias=None, Tensor? token_weights=None, ";
  const std::string with_teacher = "*, Tensor? bias=None, Tensor? teacher_bias=None, Tensor? token_weights=None, ";
  const std::string temperature = "float teacher_temperature=1.0, ";
  define_linear_loss(
      m, "linear_jsd", "Tensor teacher_hidden, Tensor teacher_weight, Tensor? targets=None, " + with_teacher,
      declared_soft_options(), torch::CppFunction::makeFromBoxedFunction<boxed<linear_distillation>>());
  define_linear_loss(
      m, "linear_cross_entropy", "Tensor targets, " + weights, declared_hard_options(),
      torch::CppFunction::makeFromBoxedFunction<boxed<linear_cross_entropy>>());
  // A teacher of a few tokens has its softcap, if any, in its log-probabilities, and its kernel computes all metrics.
  define_linear_loss(
      m, "linear_topk", "Tensor ids, Tensor log_probs, Tensor tail, Tensor? targets=None, " + weights,
      temperature + declared("divergence", "student_softcap", {.divergence = Divergence::kForwardKl}),
      torch::CppFunction::makeFromBoxedFunction<boxed<linear_distillation>>());
  define_linear_loss(
      m, "linear_sampled", "Tensor ids, Tensor weights, Tensor? targets=None, " + weights,
      temperature + declared("temperature", "student_softcap"),
      torch::CppFunction::makeFromBoxedFunction<boxed<linear_sampled>>());
}

TORCH_LIBRARY_IMPL(distill, CPU, m)
{
  m.impl("_linear_head", linear_head_kernel);
  m.impl("_linear_head_into", linear_head_into_kernel);
}

TORCH_LIBRARY_IMPL(distill, CUDA, m)
{
  m.impl("_linear_head", linear_head_kernel);
  m.impl("_linear_head_into", linear_head_into_kernel);
}

TORCH_LIBRARY_IMPL(distill, Meta, m)
{
  m.impl("_linear_head", linear_head_meta);
  m.impl("_linear_head_into", linear_head_into_meta);
}

} // namespace distill::losses
