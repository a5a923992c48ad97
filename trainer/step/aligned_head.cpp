#include "trainer/step/aligned_head.h"

#include <ATen/ATen.h>

#include "losses/checks.h"
#include "trainer/metrics/alignment_sums.h"

namespace distill::trainer {
namespace {

using losses::LossOptions;

// One call: the models' outputs, and what of the student's gradient is there already.
class AlignedRun {
 public:
  AlignedRun(
      const Prediction& prediction, const at::Tensor& hidden_NH, const at::Tensor& weight_VH, const AlignedLoss& loss,
      const losses::ChunkOptions& chunks, const losses::LinearHeadGrads* grads)
      : head_(prediction.head),
        aligned_(*prediction.aligned),
        hidden_NH_(hidden_NH),
        weight_VH_(weight_VH),
        loss_(loss),
        chunks_(chunks),
        grads_(grads),
        compares_(loss.loss.divergence != losses::Divergence::kNone && loss.loss.soft_weight > 0),
        spans_(compares_ && loss.spans.weight > 0),
        first_compared_(loss.spans.starts ? 0 : aligned_.spans),
        compared_rows_(aligned_.first_rows_Z.narrow(0, first_compared_, aligned_.pieces - first_compared_)) {}

  AlignedResult run();

 private:
  losses::LinearHeadInputs student() const;
  at::Tensor head(const losses::LinearHeadInputs& inputs, const LossOptions& options, bool with_gradient);
  at::Tensor labels(const at::Tensor& weights_N, double hard_weight);
  at::Tensor compare();
  at::Tensor student_log_probs(const at::Tensor& hard_N) const;
  at::Tensor span_hard() const;
  losses::SpanLoss span_loss(const at::Tensor& hard_N) const;
  at::Tensor on_span_tokens(const at::Tensor& values_S) const;

  const losses::LinearHeadInputs& head_;
  const AlignedPrediction& aligned_;
  const at::Tensor& hidden_NH_;
  const at::Tensor& weight_VH_;
  const AlignedLoss& loss_;
  const losses::ChunkOptions& chunks_;
  const losses::LinearHeadGrads* grads_;
  bool compares_, spans_; // distributions, and likelihoods of spans
  int64_t first_compared_; // piece
  at::Tensor compared_rows_; // where distributions are compared: of pieces from that one on
  bool any_gradient_ = false; // grads_ has that of an earlier call
};

LossOptions labels_alone(LossOptions options, double hard_weight) {
  options.divergence = losses::Divergence::kNone;
  options.hard_weight = hard_weight;
  options.soft_weight = 0;
  return options;
}

losses::LinearHeadInputs AlignedRun::student() const {
  losses::LinearHeadInputs inputs;
  inputs.hidden_NH = hidden_NH_;
  inputs.weight_VH = weight_VH_;
  inputs.targets_N = head_.targets_N;
  inputs.valid_tokens = head_.valid_tokens;
  inputs.meta_device = head_.meta_device;
  return inputs;
}

// The loss head, whose gradients are added to those of earlier calls.
at::Tensor AlignedRun::head(const losses::LinearHeadInputs& inputs, const LossOptions& options, bool with_gradient) {
  if (grads_ == nullptr || !with_gradient) {
    return losses::linear_head(inputs, options, chunks_, nullptr).metrics_MN;
  }
  losses::LinearHeadGrads own = *grads_;
  own.accumulate = grads_->accumulate || any_gradient_;
  if (any_gradient_) {
    own.hidden_NH = at::empty_like(grads_->hidden_NH);
  }
  const at::Tensor metrics_MN = losses::linear_head(inputs, options, chunks_, &own).metrics_MN;
  if (any_gradient_) {
    at::Tensor(grads_->hidden_NH).add_(own.hidden_NH);
  }
  any_gradient_ = true;
  return metrics_MN;
}

// The cross-entropy of the labels over all of the student's tokens, with these weights.
at::Tensor AlignedRun::labels(const at::Tensor& weights_N, double hard_weight) {
  losses::LinearHeadInputs inputs = student();
  inputs.token_weights_N = weights_N;
  return head(inputs, labels_alone(loss_.loss, hard_weight), /*with_gradient=*/true);
}

// The divergence over the tokens that both have, where both have a boundary. The label matters to nothing.
at::Tensor AlignedRun::compare() {
  losses::LinearHeadInputs inputs = head_;
  inputs.hidden_NH = hidden_NH_;
  inputs.weight_VH = weight_VH_;
  inputs.bias_V = loss_.bias_V;
  inputs.teacher_bias_V = loss_.teacher_bias_V;
  inputs.targets_N = at::full_like(head_.targets_N, losses::kIgnoreIndex);
  inputs.targets_N.index_copy_(0, compared_rows_, at::zeros_like(compared_rows_));
  inputs.valid_tokens = compared_rows_.size(0);
  LossOptions options = loss_.loss;
  options.hard_weight = 0;
  options.label_smoothing = 0;
  options.z_loss = 0;
  return head(inputs, options, /*with_gradient=*/compares_);
}

// Values of spans at each of the student's tokens in them, 0 elsewhere: [N].
at::Tensor AlignedRun::on_span_tokens(const at::Tensor& values_S) const {
  const at::Tensor rows = aligned_.rows_P.narrow(0, 0, aligned_.span_tokens);
  const at::Tensor pieces = aligned_.pieces_P.narrow(0, 0, aligned_.span_tokens);
  return at::zeros({hidden_NH_.size(0)}, values_S.options()).index_copy_(0, rows, values_S.index_select(0, pieces));
}

// The student's log-likelihoods of spans [S], fp64. hard_N: cross-entropy of each token, where it is in a span.
at::Tensor AlignedRun::student_log_probs(const at::Tensor& hard_N) const {
  const at::Tensor rows = aligned_.rows_P.narrow(0, 0, aligned_.span_tokens);
  const at::Tensor pieces = aligned_.pieces_P.narrow(0, 0, aligned_.span_tokens);
  const at::Tensor log_probs = hard_N.index_select(0, rows).to(at::kDouble).neg_();
  return at::zeros({aligned_.spans}, log_probs.options()).index_add_(0, pieces, log_probs);
}

losses::SpanLoss AlignedRun::span_loss(const at::Tensor& hard_N) const {
  return losses::span_divergence(
      aligned_.log_probs_Z.narrow(0, 0, aligned_.spans), student_log_probs(hard_N), loss_.loss, loss_.spans);
}

// The cross-entropy of each token in a span, without label smoothing, 0 elsewhere: [N].
at::Tensor AlignedRun::span_hard() const {
  losses::LinearHeadInputs inputs = student();
  const at::Tensor rows = aligned_.rows_P.narrow(0, 0, aligned_.span_tokens);
  inputs.targets_N = at::full_like(head_.targets_N, losses::kIgnoreIndex);
  inputs.targets_N.index_copy_(0, rows, head_.targets_N.index_select(0, rows));
  inputs.valid_tokens = aligned_.span_tokens;
  LossOptions options = labels_alone(loss_.loss, 1);
  options.label_smoothing = 0;
  options.z_loss = 0;
  options.metrics = losses::MetricSet::kLoss;
  return losses::linear_head(inputs, options, chunks_, nullptr).metrics_MN[losses::kHard];
}

AlignedResult AlignedRun::run() {
  const LossOptions& loss = loss_.loss;
  const bool plain = loss.label_smoothing == 0 && loss.z_loss == 0;
  const bool trains = grads_ != nullptr;
  losses::SpanLoss spans;
  at::Tensor weights_N; // of the spans' tokens in the cross-entropy that has the spans' gradient
  if (spans_ && (trains || !plain)) {
    spans = span_loss(span_hard());
    const at::ScalarType type = losses::compute_type(hidden_NH_.scalar_type());
    weights_N = on_span_tokens((-loss.soft_weight * loss_.spans.weight) * spans.slope_Z).to(type);
  }
  // One cross-entropy has both gradients, unless only that of the labels is smoothed.
  const bool merges = trains && spans_ && plain;
  at::Tensor metrics_MN = merges ? labels(weights_N + loss.hard_weight, 1) : labels({}, loss.hard_weight);
  if (trains && spans_ && !plain) {
    losses::LinearHeadInputs inputs = student();
    inputs.token_weights_N = weights_N;
    LossOptions options = labels_alone(loss, 1);
    options.label_smoothing = 0;
    options.z_loss = 0;
    head(inputs, options, /*with_gradient=*/true);
  }
  if (spans_ && !spans.loss_Z.defined()) {
    spans = span_loss(metrics_MN[losses::kHard]);
  }
  const at::Tensor compared_MN = compare();
  for (const int64_t metric :
       {losses::kSoft, losses::kForwardKl, losses::kReverseKl, losses::kStudentEntropy, losses::kTeacherEntropy,
        losses::kAgreement, losses::kTeacherLse}) {
    metrics_MN[metric].copy_(compared_MN[metric]);
  }
  at::Tensor alignment_A = at::zeros({metrics::kNumAlignmentSums}, metrics_MN.options().dtype(at::kDouble));
  alignment_A[metrics::kPieces].fill_(static_cast<double>(aligned_.pieces));
  alignment_A[metrics::kSpans].fill_(static_cast<double>(aligned_.spans));
  alignment_A[metrics::kSpanTokens].fill_(static_cast<double>(aligned_.span_tokens));
  if (spans_) {
    const at::Tensor first_rows = aligned_.first_rows_Z.narrow(0, 0, aligned_.spans);
    metrics_MN[losses::kSoft].index_add_(
        0, first_rows, (loss_.spans.weight * spans.loss_Z).to(metrics_MN.scalar_type()));
    alignment_A[metrics::kSpanLoss].copy_(spans.loss_Z.sum());
  }
  const at::Tensor lse = compared_MN[losses::kTeacherLse].index_select(0, compared_rows_).to(at::kDouble);
  const at::Tensor whole_lse = aligned_.lse_Z.narrow(0, first_compared_, lse.size(0)).to(at::kDouble);
  alignment_A[metrics::kCompared].fill_(static_cast<double>(lse.size(0)));
  alignment_A[metrics::kDroppedMass].copy_((lse - whole_lse).expm1().neg().clamp_min(0).sum());
  metrics_MN[losses::kTeacherCe].zero_().index_copy_(
      0, aligned_.first_rows_Z, aligned_.log_probs_Z.neg().to(metrics_MN.scalar_type()));
  // The weighted sum of its parts: the heads above had other weights.
  at::Tensor total_N = loss.hard_weight * (metrics_MN[losses::kHard] + loss.z_loss * metrics_MN[losses::kZLoss]);
  if (compares_) {
    total_N = total_N + loss.soft_weight * metrics_MN[losses::kSoft];
  }
  metrics_MN[losses::kLoss].copy_(total_N);
  return {metrics_MN, alignment_A};
}

} // namespace

AlignedResult run_aligned_head(
    const Prediction& prediction, const at::Tensor& hidden_NH, const at::Tensor& weight_VH, const AlignedLoss& loss,
    const losses::ChunkOptions& chunks, const losses::LinearHeadGrads* grads) {
  TORCH_CHECK(prediction.aligned, "run_aligned_head: expected the pieces of a teacher's text, found none");
  return AlignedRun(prediction, hidden_NH, weight_VH, loss, chunks, grads).run();
}

} // namespace distill::trainer
