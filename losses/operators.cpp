// libdistill_losses.so: the losses as PyTorch operators, for torch.ops.load_library. docs/loss_head.md documents them.
//
// The public operators are composites around three operators with kernels and shape functions; autograd's node sits
// between, so that torch.compile sees only operators it can trace.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "losses/checks.h"
#include "losses/linear_head.h"
#include "losses/logits_loss.h"

namespace distill::losses {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

at::Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.has_value() ? *tensor : at::Tensor();
}

OptionalTensor or_none(const at::Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

Divergence divergence_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Divergence>, 7> kNames{{
      {"none", Divergence::kNone},
      {"jsd", Divergence::kJsd},
      {"forward_kl", Divergence::kForwardKl},
      {"reverse_kl", Divergence::kReverseKl},
      {"skew_forward_kl", Divergence::kSkewForwardKl},
      {"skew_reverse_kl", Divergence::kSkewReverseKl},
      {"total_variation", Divergence::kTotalVariation},
  }};
  for (const auto& [known, divergence] : kNames) {
    if (name == known) {
      return divergence;
    }
  }
  TORCH_CHECK(
      false,
      "divergence: expected none, jsd, forward_kl, reverse_kl, skew_forward_kl, skew_reverse_kl or total_variation, found ",
      name);
}

// The options of the inner operators travel as two lists, in this order.
std::vector<double> numbers(const LossOptions& o) {
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
      o.logits_dtype == LogitsDtype::kBFloat16 ? 1.0 : 0.0};
}

LossOptions options_from(at::ArrayRef<double> n) {
  TORCH_CHECK(n.size() == 12, "distill: expected 12 loss options, found ", n.size());
  return {
      .divergence = static_cast<Divergence>(static_cast<int>(n[0])),
      .beta = n[1],
      .skew_alpha = n[2],
      .temperature = n[3],
      .scale_by_temperature_squared = n[4] != 0,
      .hard_weight = n[5],
      .soft_weight = n[6],
      .label_smoothing = n[7],
      .z_loss = n[8],
      .student_softcap = n[9],
      .teacher_softcap = n[10],
      .logits_dtype = n[11] != 0 ? LogitsDtype::kBFloat16 : LogitsDtype::kFloat32};
}

struct Tensors {
  at::Tensor hidden;
  at::Tensor weight;
  at::Tensor teacher_hidden;
  at::Tensor teacher_weight;
  at::Tensor targets;
  at::Tensor bias;
  at::Tensor teacher_bias;
  at::Tensor token_weights;
};

// sizes: vocab_size, valid_tokens, chunk_size, memory_cap_mb, min_chunk_size.
LinearHeadInputs inputs_of(const Tensors& t, at::IntArrayRef sizes) {
  TORCH_CHECK(sizes.size() == 5, "distill: expected 5 sizes, found ", sizes.size());
  return {
      .hidden_NH = t.hidden,
      .weight_VH = t.weight,
      .bias_V = t.bias,
      .teacher_hidden_NG = t.teacher_hidden,
      .teacher_weight_VG = t.teacher_weight,
      .teacher_bias_V = t.teacher_bias,
      .targets_N = t.targets,
      .token_weights_N = t.token_weights,
      .vocab_size = sizes[0],
      .valid_tokens = sizes[1]};
}

ChunkOptions chunks_of(at::IntArrayRef sizes) {
  return {.chunk_size = sizes[2], .memory_cap_mb = sizes[3], .min_chunk_size = sizes[4]};
}

at::TensorOptions sum_options(const at::Tensor& tensor) {
  return tensor.options().dtype(compute_type(tensor.scalar_type())).requires_grad(false);
}

// Rows, and the gradients of sum(rows[0]): hidden's, weight's (fp32) and bias's (fp32), empty where not `needed`.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_head_kernel(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& teacher_hidden,
    const OptionalTensor& teacher_weight, const OptionalTensor& targets, const OptionalTensor& bias,
    const OptionalTensor& teacher_bias, const OptionalTensor& token_weights, at::ArrayRef<double> options,
    at::IntArrayRef sizes, at::IntArrayRef needed) {
  const Tensors tensors{
      hidden,
      weight,
      or_undefined(teacher_hidden),
      or_undefined(teacher_weight),
      or_undefined(targets),
      or_undefined(bias),
      or_undefined(teacher_bias),
      or_undefined(token_weights)};
  const LinearHeadInputs in = inputs_of(tensors, sizes);
  const at::Tensor none = at::empty({0}, sum_options(hidden));
  if (needed[0] == 0 && needed[1] == 0 && needed[2] == 0) {
    return {linear_head(in, options_from(options), chunks_of(sizes), nullptr).rows_KN, none, none, none};
  }
  LinearHeadGrads grads;
  grads.hidden_NH = at::empty(hidden.sizes(), hidden.options().requires_grad(false));
  grads.weight_VH = needed[1] != 0 ? at::zeros(weight.sizes(), sum_options(weight)) : at::Tensor();
  grads.bias_V = needed[2] != 0 ? at::zeros(bias->sizes(), sum_options(hidden)) : at::Tensor();
  const at::Tensor rows = linear_head(in, options_from(options), chunks_of(sizes), &grads).rows_KN;
  return {rows, grads.hidden_NH, needed[1] != 0 ? grads.weight_VH : none, needed[2] != 0 ? grads.bias_V : none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_head_meta(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, const OptionalTensor& bias, const OptionalTensor&, const OptionalTensor&,
    at::ArrayRef<double>, at::IntArrayRef, at::IntArrayRef needed) {
  const at::Tensor none = at::empty({0}, sum_options(hidden));
  const bool any = needed[0] + needed[1] + needed[2] > 0;
  return {
      at::empty_symint({c10::SymInt(kNumRows), hidden.sym_size(0)}, sum_options(hidden)),
      any ? at::empty_symint(hidden.sym_sizes(), hidden.options()) : none,
      needed[1] != 0 ? at::empty_symint(weight.sym_sizes(), sum_options(weight)) : none,
      needed[2] != 0 ? at::empty_symint(bias->sym_sizes(), sum_options(hidden)) : none};
}

// The trainer's form: gradients go where the caller says, the weight's is accumulated.
at::Tensor linear_head_into(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& teacher_hidden,
    const OptionalTensor& teacher_weight, const OptionalTensor& targets, const OptionalTensor& token_weights,
    at::ArrayRef<double> options, at::IntArrayRef sizes, double grad_scale, at::Tensor hidden_gradient,
    const OptionalTensor& weight_gradient, const OptionalTensor& arena) {
  const Tensors tensors{
      hidden, weight, or_undefined(teacher_hidden), or_undefined(teacher_weight), or_undefined(targets),
      {},     {},     or_undefined(token_weights)};
  LinearHeadGrads grads{
      .hidden_NH = std::move(hidden_gradient),
      .weight_VH = or_undefined(weight_gradient),
      .bias_V = {},
      .grad_scale = grad_scale};
  return linear_head(inputs_of(tensors, sizes), options_from(options), chunks_of(sizes), &grads, or_undefined(arena))
      .rows_KN;
}

at::Tensor linear_head_into_meta(
    const at::Tensor& hidden, const at::Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
    const OptionalTensor&, at::ArrayRef<double>, at::IntArrayRef, double, at::Tensor, const OptionalTensor&,
    const OptionalTensor&) {
  return at::empty_symint({c10::SymInt(kNumRows), hidden.sym_size(0)}, sum_options(hidden));
}

// Rows of given logits, and the gradient of sum(rows[0]) into `gradient`, which may be `student` itself.
at::Tensor logits_rows(
    const at::Tensor& student, const OptionalTensor& teacher, const OptionalTensor& targets,
    const OptionalTensor& token_weights, at::ArrayRef<double> options, const OptionalTensor& gradient, int64_t strategy,
    int64_t cluster_size, int64_t threads) {
  return logits_loss(
      {student, or_undefined(teacher), or_undefined(targets), or_undefined(token_weights)}, options_from(options),
      or_undefined(gradient),
      {.strategy = static_cast<RowStrategy>(strategy),
       .cluster_size = static_cast<int>(cluster_size),
       .threads = static_cast<int>(threads)});
}

at::Tensor logits_rows_meta(
    const at::Tensor& student, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
    at::ArrayRef<double>, const OptionalTensor&, int64_t, int64_t, int64_t) {
  return at::empty_symint({c10::SymInt(kNumRows), student.sym_size(0)}, sum_options(student));
}

auto call_linear_head() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("distill::_linear_head", "").typed<decltype(linear_head_kernel)>();
  return op;
}

auto call_logits_rows() {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("distill::_logits_rows", "").typed<decltype(logits_rows)>();
  return op;
}

// Multiplied out of place: what was saved stays, so a second backward gives the same. The scale never reaches the host.
at::Tensor scaled(const at::Tensor& gradient, const at::Tensor& scale, at::ScalarType type) {
  return (gradient * scale.to(gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat)).to(type);
}

// Which of hidden, weight and bias want a gradient.
std::vector<int64_t> needed_gradients(const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias) {
  const bool enabled = c10::GradMode::is_enabled();
  return {
      enabled && hidden.requires_grad() ? 1 : 0, enabled && weight.requires_grad() ? 1 : 0,
      enabled && bias.has_value() && bias->requires_grad() ? 1 : 0};
}

// linear head -> rows, differentiable in hidden, weight and bias through rows[0].
class LinearHeadFunction : public torch::autograd::Function<LinearHeadFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias,
      const OptionalTensor& teacher_hidden, const OptionalTensor& teacher_weight, const OptionalTensor& targets,
      const OptionalTensor& teacher_bias, const OptionalTensor& token_weights, std::vector<double> options,
      std::vector<int64_t> sizes, bool per_token, std::vector<int64_t> needed) {
    // Reduction none: any gradient may come back for each token, so the gradients wait for the backward.
    const std::vector<int64_t> now = per_token ? std::vector<int64_t>(3) : needed;
    const auto [rows, hidden_gradient, weight_gradient, bias_gradient] = call_linear_head().call(
        hidden, weight, teacher_hidden, teacher_weight, targets, bias, teacher_bias, token_weights, options, sizes,
        now);
    if (per_token) {
      ctx->save_for_backward(
          {hidden, weight, or_undefined(bias), or_undefined(teacher_hidden), or_undefined(teacher_weight),
           or_undefined(targets), or_undefined(teacher_bias), or_undefined(token_weights)});
    } else {
      ctx->save_for_backward({hidden_gradient, weight_gradient, bias_gradient});
    }
    ctx->saved_data["options"] = options;
    ctx->saved_data["sizes"] = sizes;
    ctx->saved_data["per_token"] = per_token;
    ctx->saved_data["needed"] = needed;
    ctx->saved_data["type"] = static_cast<int64_t>(weight.scalar_type());
    return rows;
  }

  // The composite below reduces rows[0] by a sum, so without `per_token` every entry of the incoming gradient's first
  // row is one and the same scale.
  static variable_list backward(AutogradContext* ctx, const variable_list& incoming) {
    const variable_list saved = ctx->get_saved_variables();
    const auto needed = ctx->saved_data["needed"].toIntVector();
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    at::Tensor scale;
    variable_list gradients;
    if (ctx->saved_data["per_token"].toBool()) {
      const at::Tensor per_token = incoming[0].select(0, kLoss);
      const at::Tensor weights = (saved[7].defined() ? saved[7] * per_token : per_token).contiguous();
      const std::array<int64_t, 3> now{needed[0], needed[1], needed[2]};
      const auto [rows, h, w, b] = call_linear_head().call(
          saved[0], saved[1], or_none(saved[3]), or_none(saved[4]), or_none(saved[5]), or_none(saved[2]),
          or_none(saved[6]), weights, ctx->saved_data["options"].toDoubleVector(),
          ctx->saved_data["sizes"].toIntVector(), now);
      gradients = {h, w, b};
    } else {
      gradients = {saved[0], saved[1], saved[2]};
      // The first token's; for no tokens an empty sum gives 0.
      scale = incoming[0].select(0, kLoss).narrow(0, 0, std::min<int64_t>(1, incoming[0].size(1))).sum();
    }
    variable_list out(12);
    for (size_t i = 0; i < 3; ++i) {
      if (needed[i] != 0) {
        out[i] = scale.defined() ? scaled(gradients[i], scale, type) : gradients[i].to(type);
      }
    }
    return out;
  }
};

// Logits -> rows, differentiable in the student's logits through rows[0].
class LogitsFunction : public torch::autograd::Function<LogitsFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* ctx, const at::Tensor& student, const OptionalTensor& teacher, const OptionalTensor& targets,
      const OptionalTensor& token_weights, std::vector<double> options) {
    ctx->save_for_backward({student, or_undefined(teacher), or_undefined(targets), or_undefined(token_weights)});
    ctx->saved_data["options"] = options;
    return call_logits_rows().call(student, teacher, targets, token_weights, options, std::nullopt, 0, 0, 0);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& incoming) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor per_token = incoming[0].select(0, kLoss);
    const at::Tensor weights = (saved[3].defined() ? saved[3] * per_token : per_token).contiguous();
    at::Tensor gradient = at::empty_like(saved[0]);
    call_logits_rows().call(
        saved[0], or_none(saved[1]), or_none(saved[2]), weights, ctx->saved_data["options"].toDoubleVector(), gradient,
        0, 0, 0);
    return {gradient, {}, {}, {}, {}};
  }
};

// none, sum, or mean over the valid tokens or over `num_tokens` where given.
at::Tensor reduce(
    const at::Tensor& rows, const at::Tensor& targets, std::string_view reduction, std::optional<double> num_tokens) {
  const at::Tensor loss = rows.select(0, kLoss);
  if (reduction == "none") {
    return loss;
  }
  TORCH_CHECK(reduction == "sum" || reduction == "mean", "reduction: expected none, sum or mean, found ", reduction);
  if (reduction == "sum") {
    return loss.sum();
  }
  if (num_tokens.has_value()) {
    return loss.sum() / *num_tokens;
  }
  if (!targets.defined()) {
    return loss.sum() / std::max<double>(1, static_cast<double>(loss.size(0)));
  }
  return loss.sum() / targets.ne(kIgnoreIndex).sum().clamp_min(1);
}

std::tuple<at::Tensor, at::Tensor> linear_jsd(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& teacher_hidden,
    const at::Tensor& teacher_weight, const OptionalTensor& targets, const OptionalTensor& bias,
    const OptionalTensor& teacher_bias, const OptionalTensor& token_weights, std::string_view divergence, double beta,
    double skew_alpha, double temperature, bool scale_by_temperature_squared, double hard_weight, double soft_weight,
    double label_smoothing, double z_loss, double student_softcap, double teacher_softcap, std::string_view reduction,
    std::optional<double> num_tokens, int64_t vocab_size, int64_t valid_tokens, int64_t chunk_size,
    int64_t memory_cap_mb, int64_t min_chunk_size, bool bf16_logits) {
  const LossOptions options{
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
      .logits_dtype = bf16_logits ? LogitsDtype::kBFloat16 : LogitsDtype::kFloat32};
  const at::Tensor rows = LinearHeadFunction::apply(
      hidden, weight, bias, OptionalTensor(teacher_hidden), OptionalTensor(teacher_weight), targets, teacher_bias,
      token_weights, numbers(options),
      std::vector<int64_t>{vocab_size, valid_tokens, chunk_size, memory_cap_mb, min_chunk_size}, reduction == "none",
      needed_gradients(hidden, weight, bias));
  return {reduce(rows, or_undefined(targets), reduction, num_tokens), rows.detach()};
}

std::tuple<at::Tensor, at::Tensor> linear_cross_entropy(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, const OptionalTensor& bias,
    const OptionalTensor& token_weights, double label_smoothing, double z_loss, double softcap,
    std::string_view reduction, std::optional<double> num_tokens, int64_t vocab_size, int64_t valid_tokens,
    int64_t chunk_size, int64_t memory_cap_mb, int64_t min_chunk_size, bool bf16_logits) {
  const LossOptions options{
      .divergence = Divergence::kNone,
      .hard_weight = 1,
      .soft_weight = 0,
      .label_smoothing = label_smoothing,
      .z_loss = z_loss,
      .student_softcap = softcap,
      .logits_dtype = bf16_logits ? LogitsDtype::kBFloat16 : LogitsDtype::kFloat32};
  const at::Tensor rows = LinearHeadFunction::apply(
      hidden, weight, bias, OptionalTensor(), OptionalTensor(), OptionalTensor(targets), OptionalTensor(),
      token_weights, numbers(options),
      std::vector<int64_t>{vocab_size, valid_tokens, chunk_size, memory_cap_mb, min_chunk_size}, reduction == "none",
      needed_gradients(hidden, weight, bias));
  return {reduce(rows, targets, reduction, num_tokens), rows.detach()};
}

std::tuple<at::Tensor, at::Tensor> jsd(
    const at::Tensor& student, const at::Tensor& teacher, const OptionalTensor& targets,
    const OptionalTensor& token_weights, std::string_view divergence, double beta, double skew_alpha,
    double temperature, bool scale_by_temperature_squared, double hard_weight, double soft_weight,
    double label_smoothing, double z_loss, double student_softcap, double teacher_softcap, std::string_view reduction,
    std::optional<double> num_tokens) {
  const LossOptions options{
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
      .teacher_softcap = teacher_softcap};
  const at::Tensor rows =
      LogitsFunction::apply(student, OptionalTensor(teacher), targets, token_weights, numbers(options));
  return {reduce(rows, or_undefined(targets), reduction, num_tokens), rows.detach()};
}

std::tuple<at::Tensor, at::Tensor> cross_entropy(
    const at::Tensor& logits, const at::Tensor& targets, const OptionalTensor& token_weights, double label_smoothing,
    double z_loss, double softcap, std::string_view reduction, std::optional<double> num_tokens) {
  const LossOptions options{
      .divergence = Divergence::kNone,
      .hard_weight = 1,
      .soft_weight = 0,
      .label_smoothing = label_smoothing,
      .z_loss = z_loss,
      .student_softcap = softcap};
  const at::Tensor rows =
      LogitsFunction::apply(logits, OptionalTensor(), OptionalTensor(targets), token_weights, numbers(options));
  return {reduce(rows, targets, reduction, num_tokens), rows.detach()};
}

} // namespace

#define DISTILL_SOFT_OPTIONS                                                                \
  "str divergence='jsd', float beta=0.5, float skew_alpha=0.1, float temperature=1.0, "     \
  "bool scale_by_temperature_squared=False, float hard_weight=0.0, float soft_weight=1.0, " \
  "float label_smoothing=0.0, float z_loss=0.0, float student_softcap=0.0, float teacher_softcap=0.0, "
#define DISTILL_REDUCTION "str reduction='mean', float? num_tokens=None"
#define DISTILL_CHUNKS                                                                                          \
  ", int vocab_size=0, int valid_tokens=-1, int chunk_size=0, int memory_cap_mb=1024, int min_chunk_size=256, " \
  "bool bf16_logits=False"

TORCH_LIBRARY(distill, m)
{
  m.def(
      "_linear_head(Tensor hidden, Tensor weight, Tensor? teacher_hidden, Tensor? teacher_weight, Tensor? targets, "
      "Tensor? bias, Tensor? teacher_bias, Tensor? token_weights, float[] options, int[] sizes, int[] needed) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "linear_head_into(Tensor hidden, Tensor weight, Tensor? teacher_hidden, Tensor? teacher_weight, Tensor? targets, "
      "Tensor? token_weights, float[] options, int[] sizes, float grad_scale, Tensor(a!) hidden_gradient, "
      "Tensor(b!)? weight_gradient, Tensor(c!)? arena=None) -> Tensor");
  m.def(
      "_logits_rows(Tensor student, Tensor? teacher, Tensor? targets, Tensor? token_weights, float[] options, "
      "Tensor(a!)? gradient, int strategy=0, int cluster_size=0, int threads=0) -> Tensor");
  m.def(
      "linear_jsd(Tensor hidden, Tensor weight, Tensor teacher_hidden, Tensor teacher_weight, Tensor? targets=None, *, "
      "Tensor? bias=None, Tensor? teacher_bias=None, Tensor? token_weights=None, " DISTILL_SOFT_OPTIONS
          DISTILL_REDUCTION DISTILL_CHUNKS ") -> (Tensor, Tensor)",
      linear_jsd);
  m.def(
      "linear_cross_entropy(Tensor hidden, Tensor weight, Tensor targets, *, Tensor? bias=None, "
      "Tensor? token_weights=None, float label_smoothing=0.0, float z_loss=0.0, float softcap=0.0, " DISTILL_REDUCTION
          DISTILL_CHUNKS ") -> (Tensor, Tensor)",
      linear_cross_entropy);
  m.def(
      "jsd(Tensor student, Tensor teacher, Tensor? targets=None, *, Tensor? token_weights=None, " DISTILL_SOFT_OPTIONS
          DISTILL_REDUCTION ") -> (Tensor, Tensor)",
      jsd);
  m.def(
      "cross_entropy(Tensor logits, Tensor targets, *, Tensor? token_weights=None, float label_smoothing=0.0, "
      "float z_loss=0.0, float softcap=0.0, " DISTILL_REDUCTION ") -> (Tensor, Tensor)",
      cross_entropy);
}

TORCH_LIBRARY_IMPL(distill, CPU, m)
{
  m.impl("_linear_head", linear_head_kernel);
  m.impl("linear_head_into", linear_head_into);
  m.impl("_logits_rows", logits_rows);
}

TORCH_LIBRARY_IMPL(distill, CUDA, m)
{
  m.impl("_linear_head", linear_head_kernel);
  m.impl("linear_head_into", linear_head_into);
  m.impl("_logits_rows", logits_rows);
}

TORCH_LIBRARY_IMPL(distill, Meta, m)
{
  m.impl("_linear_head", linear_head_meta);
  m.impl("linear_head_into", linear_head_into_meta);
  m.impl("_logits_rows", logits_rows_meta);
}

} // namespace distill::losses
