#include "tests/losses/reference.h"

#include <ATen/ATen.h>

#include "losses/excluding_bias.h"

namespace distill::losses::testing {

namespace {

constexpr double kFloor = -1e30; // stands for log(0): products with a probability of 0 stay 0
constexpr double kInfinite = 1e20; // sums beyond it had log(0) where the other side had mass

at::ScalarType scalar_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return at::kFloat;
    case ElementType::kBFloat16:
      return at::kBFloat16;
    case ElementType::kFloat64:
      return at::kDouble;
  }
  return at::kFloat;
}

at::Tensor wrap(
    const void* data, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type, c10::Device device) {
  return at::from_blob(
      const_cast<void*>(data), sizes, strides, [](void*) {}, at::TensorOptions().dtype(type).device(device), device);
}

struct Logits {
  at::Tensor biased_RV;
  at::Tensor excluded_V; // columns that the bias excludes
};

// One side's distribution at the loss's temperature, and what the hard term needs at T = 1.
struct Side {
  at::Tensor logits_RV; // after bias and softcap
  at::Tensor log_probs_RV; // at T, floored
  at::Tensor probs_RV; // at T
  at::Tensor lse_R; // at T = 1
};

Side make_side(const Logits& logits, double softcap, double temperature) {
  Side side;
  const at::Tensor& biased = logits.biased_RV;
  side.logits_RV = softcap > 0 ? at::where(logits.excluded_V, biased, (biased / softcap).tanh() * softcap) : biased;
  const at::Tensor scaled = side.logits_RV / temperature;
  side.log_probs_RV = (scaled - scaled.logsumexp(1, /*keepdim=*/true)).clamp_min(kFloor);
  side.probs_RV = side.log_probs_RV.exp();
  side.lse_R = side.logits_RV.logsumexp(1);
  return side;
}

at::Tensor non_negative(const at::Tensor& sum_R) {
  const at::Tensor clamped = sum_R.clamp_min(0);
  return at::where(clamped > kInfinite, at::full_like(clamped, INFINITY), clamped);
}

struct Soft {
  at::Tensor loss_R; // non-negative
  at::Tensor grad_RV; // with respect to the logits divided by T
};

// For a loss with d loss / d q = weight * a + const: weight * q * (a - sum q a).
at::Tensor through_softmax(const at::Tensor& q, const at::Tensor& a, double weight) {
  return weight * q * (a - (q * a).sum(1, /*keepdim=*/true));
}

// log of w_p p + (1 - w_p) q, never log(0) of two floors.
at::Tensor log_mixture(const at::Tensor& lp, const at::Tensor& lq, double p_weight) {
  const at::Tensor hi = at::maximum(lp, lq);
  const at::Tensor t = (-(lp - lq).abs()).exp();
  const at::Tensor low_weight = at::where(lp > lq, at::full_like(hi, 1 - p_weight), at::full_like(hi, p_weight));
  return hi + (-low_weight * (1 - t)).log1p();
}

Soft soft_loss(Divergence divergence, const LossOptions& o, const Side& student, const Side& teacher) {
  const at::Tensor& q = student.probs_RV;
  const at::Tensor& p = teacher.probs_RV;
  const at::Tensor& lq = student.log_probs_RV;
  const at::Tensor& lp = teacher.log_probs_RV;
  switch (divergence) {
    case Divergence::kNone:
      return {at::zeros_like(student.lse_R), at::zeros_like(q)};
    case Divergence::kForwardKl:
      return {non_negative((p * (lp - lq) - p + q).sum(1)), q - p};
    case Divergence::kReverseKl:
      return {non_negative((q * (lq - lp) - q + p).sum(1)), through_softmax(q, lq - lp, 1)};
    case Divergence::kJsd: {
      const at::Tensor lm = log_mixture(lp, lq, o.beta);
      const at::Tensor terms = o.beta * p * (lp - lm) + (1 - o.beta) * q * (lq - lm);
      return {non_negative(terms.sum(1)), through_softmax(q, lq - lm, 1 - o.beta)};
    }
    case Divergence::kSkewForwardKl: {
      const at::Tensor lm = log_mixture(lp, lq, o.skew_alpha);
      const at::Tensor terms = p * (lp - lm) + (1 - o.skew_alpha) * (q - p);
      const at::Tensor a = (1 - o.skew_alpha) * ((lq - lm).exp() - (lp - lm).exp());
      return {non_negative(terms.sum(1)), through_softmax(q, a, 1 - o.skew_alpha)};
    }
    case Divergence::kSkewReverseKl: {
      const at::Tensor lm = log_mixture(lp, lq, 1 - o.skew_alpha);
      const at::Tensor terms = q * (lq - lm) + (1 - o.skew_alpha) * (p - q);
      const at::Tensor a = lq - lm + o.skew_alpha * (1 - o.skew_alpha) * ((lp - lm).exp() - (lq - lm).exp());
      return {non_negative(terms.sum(1)), through_softmax(q, a, 1)};
    }
    case Divergence::kTotalVariation:
      return {0.5 * (p - q).abs().sum(1), through_softmax(q, (q - p).sign(), 0.5)};
  }
  TORCH_CHECK(false, "unknown divergence");
}

} // namespace

void reference_rows(const RowArgs& args, c10::Device device) {
  const LossOptions& o = args.options;
  const at::ScalarType compute = args.logits_type == ElementType::kFloat64 ? at::kDouble : at::kFloat;
  const int64_t R = args.num_rows;
  const int64_t V = args.vocab;
  const auto logits = [&](const void* data, int64_t stride, const void* bias) {
    const at::Tensor values = wrap(data, {R, V}, {stride, 1}, scalar_type(args.logits_type), device).to(compute);
    const at::Tensor bias_V = bias == nullptr ? at::zeros({V}, values.options())
                                              : wrap(bias, {V}, {1}, scalar_type(args.bias_type), device).to(compute);
    return Logits{values + bias_V, bias_V <= kExcludingBias};
  };
  at::Tensor out = wrap(args.metrics, {kNumTokenMetrics, R}, {args.metrics_stride, 1}, compute, device);
  out.zero_();
  const Side student =
      make_side(logits(args.student, args.student_stride, args.student_bias), o.student_softcap, o.temperature);
  at::Tensor valid_R = at::ones({R}, out.options().dtype(at::kBool));
  at::Tensor weight_R = at::ones({R}, out.options());
  if (args.token_weights != nullptr) {
    weight_R = wrap(args.token_weights, {R}, {1}, compute, device);
  }
  // Gradient with respect to the capped logits at T = 1.
  at::Tensor grad = at::zeros_like(student.probs_RV);
  at::Tensor loss = at::zeros({R}, out.options());
  const at::Tensor best_R = student.logits_RV.argmax(1);

  if (args.targets != nullptr) {
    const at::Tensor targets_R = wrap(args.targets, {R}, {1}, at::kLong, device);
    valid_R = targets_R.ne(kIgnoreIndex);
    const at::Tensor label_R1 = targets_R.clamp(0, V - 1).unsqueeze(1);
    const at::Tensor label_logit_R = student.logits_RV.gather(1, label_R1).squeeze(1);
    at::Tensor hard = (student.lse_R - label_logit_R).clamp_min(0) * (1 - o.label_smoothing);
    if (o.label_smoothing > 0) {
      hard += o.label_smoothing * (student.lse_R.unsqueeze(1) - student.logits_RV).mean(1).clamp_min(0);
    }
    out[kHard].copy_(hard);
    out[kAccuracy].copy_(best_R == targets_R);
    loss += o.hard_weight * (hard + o.z_loss * student.lse_R.square());
    if (o.hard_weight > 0) {
      const at::Tensor probs = (student.logits_RV - student.lse_R.unsqueeze(1)).exp();
      at::Tensor hard_grad = probs - o.label_smoothing / static_cast<double>(V);
      hard_grad.scatter_add_(1, label_R1, at::full_like(label_R1, -(1 - o.label_smoothing), out.options()));
      grad += o.hard_weight * (hard_grad + 2 * o.z_loss * student.lse_R.unsqueeze(1) * probs);
    }
  }
  out[kZLoss].copy_(student.lse_R.square());
  out[kStudentLse].copy_(student.lse_R);
  out[kStudentEntropy].copy_(-(student.probs_RV * student.log_probs_RV).sum(1));

  if (args.teacher != nullptr) {
    const Side teacher =
        make_side(logits(args.teacher, args.teacher_stride, args.teacher_bias), o.teacher_softcap, o.temperature);
    const double scale = o.scale_by_temperature_squared ? o.temperature * o.temperature : 1.0;
    const Soft soft = soft_loss(effective_divergence(o), o, student, teacher);
    out[kSoft].copy_(scale * soft.loss_R);
    out[kForwardKl].copy_(soft_loss(Divergence::kForwardKl, o, student, teacher).loss_R);
    out[kReverseKl].copy_(soft_loss(Divergence::kReverseKl, o, student, teacher).loss_R);
    out[kTeacherEntropy].copy_(-(teacher.probs_RV * teacher.log_probs_RV).sum(1));
    out[kTeacherLse].copy_(teacher.lse_R);
    if (args.targets != nullptr) {
      const at::Tensor label_R1 = wrap(args.targets, {R}, {1}, at::kLong, device).clamp(0, V - 1).unsqueeze(1);
      out[kTeacherCe].copy_((teacher.lse_R - teacher.logits_RV.gather(1, label_R1).squeeze(1)).clamp_min(0));
    }
    out[kAgreement].copy_(best_R == teacher.logits_RV.argmax(1));
    if (o.soft_weight > 0) {
      loss += o.soft_weight * out[kSoft];
      grad += (o.soft_weight * scale / o.temperature) * soft.grad_RV;
    }
  }
  if (o.student_softcap > 0) {
    grad *= 1 - (student.logits_RV / o.student_softcap).square();
  }
  const at::Tensor counts_R = valid_R.logical_and(weight_R.ne(0));
  const at::Tensor zero = at::zeros({}, out.options());
  out[kLoss].copy_(at::where(counts_R, loss * weight_R, zero));
  if (o.metrics == MetricSet::kLoss) {
    for (const int64_t metric :
         {kForwardKl, kReverseKl, kStudentEntropy, kTeacherEntropy, kAgreement, kAccuracy, kTeacherCe}) {
      out[metric].zero_();
    }
  }
  out.copy_(at::where(valid_R, out, zero));
  if (args.gradient != nullptr) {
    at::Tensor gradient =
        wrap(args.gradient, {R, V}, {args.gradient_stride, 1}, scalar_type(args.gradient_type), device);
    gradient.copy_(at::where(counts_R.unsqueeze(1), grad * weight_R.unsqueeze(1), zero));
  }
}

} // namespace distill::losses::testing
