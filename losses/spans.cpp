#include "losses/spans.h"

#include <ATen/ATen.h>

#include <cmath>

namespace distill::losses {
namespace {

constexpr double kLeastSurprise = 1e-7; // nats; fp32 sums of log-probabilities know no less

// The logarithms of the probabilities of both outcomes.
struct Outcomes {
  at::Tensor log_yes, log_no;

  at::Tensor yes() const {
    return log_yes.exp();
  }
  at::Tensor no() const {
    return log_no.exp();
  }
};

Outcomes outcomes(const at::Tensor& log_Z, double temperature) {
  const at::Tensor log_yes = log_Z.clamp_max(-kLeastSurprise).div(temperature);
  return {log_yes, log_yes.expm1().neg().log()};
}

// weight * a + (1 - weight) * b
Outcomes mixture(const Outcomes& a, const Outcomes& b, double weight) {
  const double log_a = std::log(weight), log_b = std::log1p(-weight);
  return {at::logaddexp(a.log_yes + log_a, b.log_yes + log_b), at::logaddexp(a.log_no + log_a, b.log_no + log_b)};
}

at::Tensor kl(const Outcomes& a, const Outcomes& b) {
  return (a.yes() * (a.log_yes - b.log_yes) + a.no() * (a.log_no - b.log_no)).clamp_min(0);
}

} // namespace

SpanLoss span_divergence(
    const at::Tensor& teacher_log_Z, const at::Tensor& student_log_Z, const LossOptions& options,
    const SpanOptions& spans) {
  TORCH_CHECK(
      teacher_log_Z.scalar_type() == at::kDouble && student_log_Z.scalar_type() == at::kDouble &&
          teacher_log_Z.sizes() == student_log_Z.sizes() && teacher_log_Z.dim() == 1,
      "span_divergence: expected two fp64 tensors of one dimension, found ", teacher_log_Z.scalar_type(), " ",
      teacher_log_Z.sizes(), " and ", student_log_Z.scalar_type(), " ", student_log_Z.sizes());
  const double temperature = spans.temperature;
  const Outcomes p = outcomes(teacher_log_Z, temperature), q = outcomes(student_log_Z, temperature);
  // The derivative of q's probability with respect to its logarithm is q itself, and the other outcome has the rest.
  const at::Tensor by_log_q = q.yes();
  at::Tensor loss_Z, slope_Z;
  switch (effective_divergence(options)) {
    case Divergence::kNone:
      loss_Z = at::zeros_like(teacher_log_Z);
      slope_Z = at::zeros_like(teacher_log_Z);
      break;
    case Divergence::kForwardKl:
      loss_Z = kl(p, q);
      slope_Z = (q.yes() - p.yes()) / q.no();
      break;
    case Divergence::kReverseKl:
      loss_Z = kl(q, p);
      slope_Z = by_log_q * (q.log_yes - p.log_yes - (q.log_no - p.log_no));
      break;
    case Divergence::kJsd: {
      const Outcomes m = mixture(p, q, options.beta);
      loss_Z = options.beta * kl(p, m) + (1 - options.beta) * kl(q, m);
      slope_Z = (1 - options.beta) * by_log_q * (q.log_yes - m.log_yes - (q.log_no - m.log_no));
      break;
    }
    case Divergence::kSkewForwardKl: {
      const Outcomes m = mixture(p, q, options.skew_alpha);
      loss_Z = kl(p, m);
      slope_Z = (options.skew_alpha - 1) * by_log_q * ((p.log_yes - m.log_yes).exp() - (p.log_no - m.log_no).exp());
      break;
    }
    case Divergence::kSkewReverseKl: {
      const Outcomes m = mixture(q, p, options.skew_alpha);
      loss_Z = kl(q, m);
      const auto of = [&](const at::Tensor& log_q, const at::Tensor& log_m) {
        const at::Tensor ratio = log_q - log_m;
        return ratio - options.skew_alpha * ratio.exp();
      };
      slope_Z = by_log_q * (of(q.log_yes, m.log_yes) - of(q.log_no, m.log_no));
      break;
    }
    case Divergence::kTotalVariation:
      loss_Z = (p.yes() - q.yes()).abs();
      slope_Z = by_log_q * (q.yes() - p.yes()).sign();
      break;
  }
  return {temperature * loss_Z, slope_Z};
}

} // namespace distill::losses
