#pragma once

#include <ATen/core/Tensor.h>

#include "losses/options.h"

namespace distill::losses {

// How the likelihoods of spans count: texts that teacher and student write in tokens of other boundaries.
struct SpanOptions {
  double weight = 1.0; // of a span's loss, beside the divergence of one position; 0: spans are not compared
  // Whether distributions are compared where a span begins, too: there the two models expect tokens of other lengths.
  bool starts = false;
  double temperature = 100.0; // the likelihoods are taken to the power 1 / temperature, and the loss times it
};

struct SpanLoss {
  at::Tensor loss_Z; // nats
  at::Tensor slope_Z; // its derivative with respect to the student's log-likelihood
};

// The divergence of `options` between the teacher and the student, who have two outcomes: the span, with the
// probabilities P^(1/T) and Q^(1/T), and anything else; times T = spans.temperature. P and Q are the exponentials of
// the log-likelihoods, fp64 [Z], which count as at most -1e-7: a model is never sure. By the data-processing inequality
// the loss with T = 1 is at most the divergence of all texts. Everything is finite. Neither the loss's temperature nor
// its weights count here.
SpanLoss span_divergence(
    const at::Tensor& teacher_log_Z, const at::Tensor& student_log_Z, const LossOptions& options,
    const SpanOptions& spans);

} // namespace distill::losses
