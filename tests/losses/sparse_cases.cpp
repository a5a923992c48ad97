#include "tests/losses/sparse_cases.h"

#include <ATen/CPUGeneratorImpl.h>

namespace distill::losses::testing {

namespace {

constexpr double kNothing = -1000; // stands for log 0: its exponential is 0, and differences stay finite

int64_t vocab_of(const LinearHeadInputs& in) {
  const int64_t student = in.weight_VH.size(0);
  const int64_t all = in.teacher_weight_VG.defined() ? std::min(student, in.teacher_weight_VG.size(0)) : student;
  return in.vocab_size > 0 ? in.vocab_size : all;
}

LinearHeadInputs without_teacher(LinearHeadInputs in) {
  in.vocab_size = vocab_of(in);
  in.teacher_hidden_NG = in.teacher_weight_VG = in.teacher_bias_V = at::Tensor();
  return in;
}

at::Tensor fp64(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().to(at::kDouble) : tensor;
}

at::Tensor leaf(const at::Tensor& tensor) {
  return tensor.defined() ? fp64(tensor).clone().set_requires_grad(true) : tensor;
}

// Log-probabilities of both sides over the k entries and the tail, [N, K + 1].
struct Outcomes {
  at::Tensor lp;
  at::Tensor lq;
};

Outcomes outcomes_of(const LinearHeadInputs& in, const at::Tensor& log_q_NV) {
  const at::Tensor ids = in.topk_ids_NK.to(at::kLong);
  const at::Tensor listed = ids.ge(0);
  const at::Tensor columns = ids.clamp_min(0);
  const at::Tensor nothing = at::full({}, kNothing, log_q_NV.options().requires_grad(false));
  const at::Tensor in_tail =
      at::zeros(log_q_NV.sizes(), log_q_NV.options().requires_grad(false)).scatter_add(1, columns, fp64(listed)) == 0;
  const at::Tensor has_tail = in_tail.any(1);
  const at::Tensor lq_tail = at::where(in_tail, log_q_NV, nothing).logsumexp(1);
  const at::Tensor tail = at::where(has_tail, fp64(in.tail_N).clamp_min(0), at::zeros({}, nothing.options()));
  const at::Tensor lp = at::where(listed, fp64(in.topk_log_probs_NK).clamp_min(kNothing), nothing);
  const at::Tensor mass = (lp.exp() * listed).sum(1) + tail;
  Outcomes out;
  out.lp = at::cat({lp, tail.log().clamp_min(kNothing).unsqueeze(1)}, 1) - mass.log().unsqueeze(1);
  out.lq = at::cat(
      {at::where(listed, log_q_NV.gather(1, columns), nothing), at::where(has_tail, lq_tail, nothing).unsqueeze(1)}, 1);
  return out;
}

// log p of the label, or the bound that a label outside the entries has.
at::Tensor label_log_prob(const LinearHeadInputs& in, const at::Tensor& lp_NO) {
  const int64_t entries = in.topk_ids_NK.size(1);
  const at::Tensor lp = lp_NO.narrow(1, 0, entries);
  const at::Tensor is_label = in.topk_ids_NK.to(at::kLong).eq(in.targets_N.unsqueeze(1));
  const at::Tensor listed = in.topk_ids_NK.ge(0);
  const at::Tensor least = at::where(listed, lp, at::zeros_like(lp)).amin(1);
  const at::Tensor bound = at::minimum(least, lp_NO.select(1, entries)).clamp_min(-126 * std::log(2.0));
  const at::Tensor found = at::where(is_label, lp, at::full_like(lp, -INFINITY)).amax(1);
  return at::where(is_label.any(1), found, bound);
}

} // namespace

at::Tensor teacher_log_probs(const LinearHeadInputs& in, const LossOptions& options) {
  const at::Tensor logits = naive_logits(
      fp64(in.teacher_hidden_NG), fp64(in.teacher_weight_VG), fp64(in.teacher_bias_V), options.teacher_softcap,
      vocab_of(in));
  return (logits / options.temperature).log_softmax(1);
}

LinearHeadInputs with_topk(LinearHeadInputs in, const LossOptions& options, int64_t k, at::ScalarType dtype) {
  const at::Tensor log_p = teacher_log_probs(in, options);
  const auto [values, ids] = log_p.topk(k);
  const at::Tensor tail = log_p.exp().scatter(1, ids, 0.0).sum(1);
  in = without_teacher(in);
  in.topk_ids_NK = ids.to(at::kInt);
  in.topk_log_probs_NK = values.to(dtype);
  in.tail_N = tail.to(in.hidden_NH.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  in.teacher_temperature = options.temperature;
  return in;
}

LinearHeadInputs with_samples(
    LinearHeadInputs in, const LossOptions& options, int64_t samples, double exponent, at::ScalarType dtype,
    uint64_t seed) {
  const at::Tensor log_p = teacher_log_probs(in, options).cpu();
  const at::Tensor draws = (log_p * exponent).softmax(1);
  const at::Tensor ids = at::multinomial(draws, samples, /*replacement=*/true, at::detail::createCPUGenerator(seed));
  const at::Tensor weights = log_p.exp().gather(1, ids) / draws.gather(1, ids) / static_cast<double>(samples);
  in = without_teacher(in);
  in.sample_ids_NS = ids.to(in.hidden_NH.device(), at::kInt);
  in.sample_weights_NS = weights.to(in.hidden_NH.device(), dtype);
  in.teacher_temperature = options.temperature;
  return in;
}

NaiveResult naive_sparse(const LinearHeadInputs& in, const LossOptions& o, double grad_scale) {
  LinearHeadInputs labels_alone = in;
  labels_alone.topk_ids_NK = labels_alone.sample_ids_NS = at::Tensor();
  LossOptions hard = o;
  hard.divergence = Divergence::kNone;
  hard.soft_weight = 0;
  NaiveResult result = naive_head(labels_alone, hard, grad_scale);

  const at::Tensor hidden = leaf(in.hidden_NH);
  const at::Tensor weight = leaf(in.weight_VH);
  const at::Tensor bias = leaf(in.bias_V);
  const at::Tensor logits = naive_logits(hidden, weight, bias, o.student_softcap, vocab_of(in));
  const at::Tensor log_q = (logits / o.temperature).log_softmax(1);
  const at::Tensor valid = in.targets_N.defined() ? in.targets_N.ne(kIgnoreIndex)
                                                  : at::ones({logits.size(0)}, hidden.options()).ne(0).detach();
  const at::Tensor zero = at::zeros({}, logits.options().requires_grad(false));
  const auto where_valid = [&](const at::Tensor& values) { return at::where(valid, values.to(at::kDouble), zero); };
  const double scale = o.scale_by_temperature_squared ? o.temperature * o.temperature : 1.0;
  at::Tensor soft;
  if (in.sample_ids_NS.defined()) {
    const at::Tensor ids = in.sample_ids_NS.to(at::kLong);
    const at::Tensor weights = fp64(in.sample_weights_NS) * ids.ge(0);
    soft = -(weights * log_q.gather(1, ids.clamp_min(0))).sum(1) * scale;
  } else {
    const Outcomes outcomes = outcomes_of(in, log_q);
    soft = naive_divergence(o, outcomes.lp, outcomes.lq) * scale;
    const auto divergence = [&](Divergence kind) {
      return where_valid(naive_divergence({.divergence = kind}, outcomes.lp, outcomes.lq).detach());
    };
    result.forward_kl_N = divergence(Divergence::kForwardKl);
    result.reverse_kl_N = divergence(Divergence::kReverseKl);
    const at::Tensor p = outcomes.lp.exp();
    result.teacher_entropy_N = where_valid(-at::xlogy(p, p).sum(1));
    const at::Tensor best = in.topk_ids_NK.gather(1, in.topk_log_probs_NK.to(at::kDouble).argmax(1, true)).squeeze(1);
    result.agreement_N = where_valid(logits.argmax(1).eq(best));
    if (in.targets_N.defined() && o.temperature == 1) {
      result.teacher_ce_N = where_valid(-label_log_prob(in, outcomes.lp));
    }
  }
  result.soft_N = where_valid(soft.detach());
  at::Tensor loss = where_valid(o.soft_weight * soft);
  loss = in.token_weights_N.defined() ? loss * fp64(in.token_weights_N) : loss;
  result.loss_N = result.loss_N + loss.detach();
  if (o.divergence == Divergence::kNone) {
    return result;
  }
  (loss.sum() * grad_scale).backward();
  const auto add = [](at::Tensor& sum, const at::Tensor& variable) {
    if (variable.defined()) {
      sum = sum.defined() ? sum + variable.grad() : variable.grad();
    }
  };
  add(result.d_hidden_NH, hidden);
  add(result.d_weight_VH, weight);
  add(result.d_bias_V, bias);
  return result;
}

} // namespace distill::losses::testing
