#include "tests/losses/naive.h"

#include <limits>

#include <gtest/gtest.h>

namespace distill::losses::testing {

namespace {

at::Tensor logits_of(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias, double cap, int64_t vocab) {
  at::Tensor logits = at::matmul(hidden, weight.t());
  logits = bias.defined() ? logits + bias : logits;
  return (cap > 0 ? (logits / cap).tanh() * cap : logits).narrow(1, 0, vocab);
}

// KL(x || y) from probabilities and log-probabilities; 0 log 0 = 0.
at::Tensor kl(const at::Tensor& x, const at::Tensor& log_x, const at::Tensor& log_y) {
  const at::Tensor difference = at::where(x > 0, log_x - log_y, at::zeros_like(x));
  return (x * difference).sum(1);
}

at::Tensor log_mix(const at::Tensor& log_x, const at::Tensor& log_y, double x_weight) {
  if (x_weight == 0) {
    return log_y;
  }
  return at::logaddexp(log_x + std::log(x_weight), log_y + std::log(1 - x_weight));
}

at::Tensor divergence_of(const LossOptions& o, const at::Tensor& lp, const at::Tensor& lq) {
  const at::Tensor p = lp.exp();
  const at::Tensor q = lq.exp();
  switch (o.divergence) {
    case Divergence::kNone:
      return at::zeros({lq.size(0)}, lq.options());
    case Divergence::kForwardKl:
      return kl(p, lp, lq);
    case Divergence::kReverseKl:
      return kl(q, lq, lp);
    case Divergence::kJsd: {
      if (o.beta == 0 || o.beta == 1) {
        return o.beta == 0 ? kl(p, lp, lq) : kl(q, lq, lp);
      }
      const at::Tensor lm = log_mix(lp, lq, o.beta);
      return o.beta * kl(p, lp, lm) + (1 - o.beta) * kl(q, lq, lm);
    }
    case Divergence::kSkewForwardKl:
      return kl(p, lp, log_mix(lp, lq, o.skew_alpha));
    case Divergence::kSkewReverseKl:
      return kl(q, lq, log_mix(lq, lp, o.skew_alpha));
    case Divergence::kTotalVariation:
      return 0.5 * (p - q).abs().sum(1);
  }
  return {};
}

at::Tensor leaf(const at::Tensor& tensor, at::ScalarType compute) {
  return tensor.defined() ? tensor.detach().to(compute).clone().set_requires_grad(true) : at::Tensor();
}

at::Tensor grad_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.grad().defined() ? tensor.grad() : at::Tensor();
}

} // namespace

at::Tensor naive_divergence(const LossOptions& options, const at::Tensor& lp_NO, const at::Tensor& lq_NO) {
  return divergence_of(options, lp_NO, lq_NO);
}

at::Tensor naive_logits(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias, double softcap, int64_t vocab) {
  return logits_of(hidden, weight, bias, softcap, vocab);
}

NaiveResult naive_head(const LinearHeadInputs& in, const LossOptions& o, double grad_scale, at::ScalarType compute) {
  const at::Tensor hidden = leaf(in.hidden_NH, compute);
  const at::Tensor weight = leaf(in.weight_VH, compute);
  const at::Tensor bias = leaf(in.bias_V, compute);
  const bool has_teacher = in.teacher_hidden_NG.defined();
  int64_t vocab = in.weight_VH.size(0);
  if (has_teacher) {
    vocab = std::min(vocab, in.teacher_weight_VG.size(0));
  }
  vocab = in.vocab_size > 0 ? in.vocab_size : vocab;
  const at::Tensor logits = logits_of(hidden, weight, bias, o.student_softcap, vocab);
  const int64_t tokens = logits.size(0);
  NaiveResult result;
  const at::Tensor valid = in.targets_N.defined()
      ? in.targets_N.ne(kIgnoreIndex)
      : at::ones({tokens}, logits.options().dtype(at::kBool).requires_grad(false));
  const at::Tensor zero = at::zeros({}, logits.options().requires_grad(false));
  const auto where_valid = [&](const at::Tensor& values) { return at::where(valid, values, zero).detach(); };
  const at::Tensor lse = logits.logsumexp(1);
  at::Tensor loss = at::zeros({tokens}, logits.options().requires_grad(false));
  if (in.targets_N.defined()) {
    const at::Tensor log_probs = logits.log_softmax(1);
    at::Tensor hard = -log_probs.gather(1, in.targets_N.clamp_min(0).unsqueeze(1)).squeeze(1);
    if (o.label_smoothing > 0) {
      hard = (1 - o.label_smoothing) * hard - o.label_smoothing * log_probs.mean(1);
    }
    result.hard_N = where_valid(hard);
    result.accuracy_N = where_valid((logits.argmax(1) == in.targets_N).to(compute));
    if (o.hard_weight > 0) {
      loss = loss + o.hard_weight * (hard + o.z_loss * lse.square());
    }
  }
  const at::Tensor lq = (logits / o.temperature).log_softmax(1);
  result.student_lse_N = where_valid(lse);
  result.student_entropy_N = where_valid(-at::xlogy(lq.exp(), lq.exp()).sum(1));
  if (has_teacher) {
    const auto cast = [&](const at::Tensor& t) { return t.defined() ? t.to(compute) : t; };
    const at::Tensor teacher = logits_of(
        cast(in.teacher_hidden_NG), cast(in.teacher_weight_VG), cast(in.teacher_bias_V), o.teacher_softcap, vocab);
    const at::Tensor lp = (teacher / o.temperature).log_softmax(1);
    const double scale = o.scale_by_temperature_squared ? o.temperature * o.temperature : 1.0;
    const at::Tensor soft = divergence_of(o, lp, lq) * scale;
    result.soft_N = where_valid(soft);
    result.forward_kl_N = where_valid(kl(lp.exp(), lp, lq));
    result.reverse_kl_N = where_valid(kl(lq.exp(), lq, lp));
    result.teacher_entropy_N = where_valid(-at::xlogy(lp.exp(), lp.exp()).sum(1));
    result.teacher_lse_N = where_valid(teacher.logsumexp(1));
    if (in.targets_N.defined()) {
      const at::Tensor label_N1 = in.targets_N.clamp_min(0).unsqueeze(1);
      result.teacher_ce_N = where_valid(-teacher.log_softmax(1).gather(1, label_N1).squeeze(1));
    }
    result.agreement_N = where_valid((logits.argmax(1) == teacher.argmax(1)).to(compute));
    if (o.soft_weight > 0 && o.divergence != Divergence::kNone) {
      loss = loss + o.soft_weight * soft;
    }
  }
  loss = at::where(valid, loss, zero);
  loss = in.token_weights_N.defined() ? loss * in.token_weights_N.to(compute) : loss;
  result.loss_N = loss.detach();
  if (loss.requires_grad()) {
    (loss.sum() * grad_scale).backward();
  }
  result.d_hidden_NH = grad_of(hidden);
  result.d_weight_VH = grad_of(weight);
  result.d_bias_V = grad_of(bias);
  return result;
}

void expect_near(const HeadResult& ours, const NaiveResult& naive, double tolerance, double gradient_tolerance) {
  const auto near = [&](TokenMetric metric, const at::Tensor& expected, const char* what) {
    if (expected.defined()) {
      EXPECT_LT(relative_error(ours.metrics_MN[metric], expected), tolerance) << what;
    } else {
      EXPECT_EQ(ours.metrics_MN[metric].abs().max().item<double>(), 0) << what << " should be 0";
    }
  };
  near(kLoss, naive.loss_N, "loss");
  near(kHard, naive.hard_N, "hard");
  near(kSoft, naive.soft_N, "soft");
  near(kZLoss, naive.student_lse_N.square(), "z-loss");
  near(kForwardKl, naive.forward_kl_N, "forward KL");
  near(kReverseKl, naive.reverse_kl_N, "reverse KL");
  near(kStudentEntropy, naive.student_entropy_N, "student entropy");
  near(kTeacherEntropy, naive.teacher_entropy_N, "teacher entropy");
  near(kAgreement, naive.agreement_N, "agreement");
  near(kAccuracy, naive.accuracy_N, "accuracy");
  near(kStudentLse, naive.student_lse_N, "student log-sum-exp");
  near(kTeacherLse, naive.teacher_lse_N, "teacher log-sum-exp");
  near(kTeacherCe, naive.teacher_ce_N, "teacher's cross-entropy");
  EXPECT_LT(relative_error(ours.grads.hidden_NH, naive.d_hidden_NH), gradient_tolerance) << "gradient of hidden";
  EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), gradient_tolerance) << "gradient of weight";
  if (naive.d_bias_V.defined()) {
    EXPECT_LT(relative_error(ours.grads.bias_V, naive.d_bias_V), gradient_tolerance) << "gradient of bias";
  }
}

} // namespace distill::losses::testing
