// These operators work on logits that the caller has. docs/loss_head.md documents them.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "losses/logits/logits_loss.h"
#include "losses/torch_ops/operator_arguments.h"

namespace distill::losses {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the metrics of logits, and writes the gradient of sum(metrics[0]) to `gradient`, which may be `student`.
at::Tensor logits_rows(
    const at::Tensor& student, const OptionalTensor& teacher, const OptionalTensor& targets,
    const OptionalTensor& token_weights, at::ArrayRef<double> options, const OptionalTensor& gradient, int64_t strategy,
    int64_t cluster_size, const OptionalTensor& saved) {
  return logits_loss(
      {student, or_undefined(teacher), or_undefined(targets), or_undefined(token_weights)}, options_from(options),
      or_undefined(gradient),
      {.strategy = static_cast<RowStrategy>(strategy), .cluster_size = static_cast<int>(cluster_size)},
      or_undefined(saved));
}

at::Tensor logits_rows_meta(
    const at::Tensor& student, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
    at::ArrayRef<double>, const OptionalTensor&, int64_t, int64_t, const OptionalTensor&) {
  return at::empty_symint({c10::SymInt(kNumTokenMetrics), student.sym_size(0)}, sum_options(student));
}

// Computes the gradient from what _logits_rows saved. `scale`: the incoming gradient of each token times its weight.
at::Tensor logits_gradient(
    const at::Tensor& student, const OptionalTensor& teacher, const OptionalTensor& targets, const at::Tensor& saved,
    const at::Tensor& scale, at::ArrayRef<double> options) {
  at::Tensor gradient = at::empty(student.sizes(), student.options().requires_grad(false));
  logits_backward(
      {student, or_undefined(teacher), or_undefined(targets), scale}, options_from(options), saved, gradient);
  return gradient;
}

at::Tensor logits_gradient_meta(
    const at::Tensor& student, const OptionalTensor&, const OptionalTensor&, const at::Tensor&, const at::Tensor&,
    at::ArrayRef<double>) {
  return at::empty_symint(student.sym_sizes(), student.options());
}

auto call_logits_gradient() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("distill::_logits_gradient", "")
                             .typed<decltype(logits_gradient)>();
  return op;
}

auto call_logits_rows() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("distill::_logits_rows", "").typed<decltype(logits_rows)>();
  return op;
}

// Maps logits to metrics, differentiable in the student's logits through metrics[0]. It saves for backward:
//   in place          the gradient itself, which the forward pass wrote over the logits
//   otherwise         each side's logits (no copy) and six numbers for each row: the backward is one pass
class LogitsFunction : public torch::autograd::Function<LogitsFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& student, const OptionalTensor& teacher, const OptionalTensor& targets,
      const OptionalTensor& token_weights, std::vector<double> options, bool in_place) {
    ctx->saved_data["options"] = options;
    ctx->saved_data["in_place"] = in_place;
    const at::Tensor gradient = in_place ? student.detach() : at::Tensor();
    at::Tensor saved;
    if (!in_place) {
      saved = at::empty_symint({c10::SymInt(kNumSavedValues), student.sym_size(0)}, sum_options(student));
    }
    const at::Tensor metrics = call_logits_rows().call(
        student, teacher, targets, token_weights, options, or_none(gradient), /*strategy=*/0, /*cluster_size=*/0,
        or_none(saved));
    if (in_place) {
      // Autograd then refuses the backward pass of any other operation that saved these logits.
      gradient.unsafeGetTensorImpl()->bump_version();
      keep_for_backward(ctx, {gradient});
    } else {
      keep_for_backward(
          ctx, {student, or_undefined(targets), saved, or_undefined(token_weights), or_undefined(teacher)});
    }
    return metrics;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& incoming) {
    refuse_second_derivative();
    const variable_list saved = kept_for_backward(ctx);
    const at::Tensor per_token = incoming[0].select(0, kLoss);
    const auto options = ctx->saved_data["options"].toDoubleVector();
    at::Tensor gradient = saved[0];
    if (ctx->saved_data["in_place"].toBool()) {
      gradient.mul_(per_token.unsqueeze(1));
      return {gradient, {}, {}, {}, {}, {}};
    }
    const at::Tensor weights = (saved[3].defined() ? saved[3] * per_token : per_token).contiguous();
    gradient = call_logits_gradient().call(saved[0], or_none(saved[4]), or_none(saved[1]), saved[2], weights, options);
    return {gradient, {}, {}, {}, {}, {}};
  }
};

// Returns whether the gradient is written in place; it is only where there is one.
bool writes_in_place(const at::Tensor& logits, const char* name, bool inplace) {
  if (!inplace || !c10::GradMode::is_enabled() || !logits.requires_grad()) {
    return false;
  }
  TORCH_CHECK(
      !logits.is_leaf(), "inplace: ", name,
      " is a leaf that requires a gradient, and its values would be lost; expected the output of another operation");
  return true;
}

using LossAndMetrics = std::tuple<at::Tensor, at::Tensor>;

LossAndMetrics logits_operator(const OperatorCall& call, const char* student, const LossOptions& otherwise) {
  const at::Tensor logits = call.tensor(student);
  const at::Tensor metrics = LogitsFunction::apply(
      logits, call.optional("teacher"), call.optional("targets"), call.optional("token_weights"),
      options_list(call.loss_options(otherwise)), writes_in_place(logits, student, call.get("inplace", false)));
  return loss_and_metrics(call, metrics);
}

LossAndMetrics jsd(const OperatorCall& call) {
  return logits_operator(call, "student", {});
}

LossAndMetrics cross_entropy(const OperatorCall& call) {
  return logits_operator(call, "logits", kHardLabels);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(distill, m)
{
  m.def(
      "_logits_rows(Tensor student, Tensor? teacher, Tensor? targets, Tensor? token_weights, float[] options, "
      "Tensor(a!)? gradient, int strategy=0, int cluster_size=0, Tensor(b!)? saved=None) -> Tensor");
  m.def(
      "_logits_gradient(Tensor student, Tensor? teacher, Tensor? targets, Tensor saved, Tensor scale, float[] options) "
      "-> Tensor");
  const std::string shared = declared_reduction() + ", bool inplace=False) -> (Tensor, Tensor)";
  m.def(
      ("jsd(Tensor student, Tensor teacher, Tensor? targets=None, *, Tensor? token_weights=None, " +
       declared_soft_options() + shared)
          .c_str(),
      torch::CppFunction::makeFromBoxedFunction<boxed<jsd>>());
  m.def(
      ("cross_entropy(Tensor logits, Tensor targets, *, Tensor? token_weights=None, " + declared_hard_options() +
       shared)
          .c_str(),
      torch::CppFunction::makeFromBoxedFunction<boxed<cross_entropy>>());
}

TORCH_LIBRARY_IMPL(distill, CPU, m)
{
  m.impl("_logits_rows", logits_rows);
  m.impl("_logits_gradient", logits_gradient);
}

TORCH_LIBRARY_IMPL(distill, CUDA, m)
{
  m.impl("_logits_rows", logits_rows);
  m.impl("_logits_gradient", logits_gradient);
}

TORCH_LIBRARY_IMPL(distill, Meta, m)
{
  m.impl("_logits_rows", logits_rows_meta);
  m.impl("_logits_gradient", logits_gradient_meta);
}

} // namespace distill::losses
