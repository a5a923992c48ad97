// The divergence of spans against the definition in fp64 with autograd, and at its limits.
#include "losses/spans.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

namespace distill::losses {
namespace {

std::vector<LossOptions> divergences() {
  std::vector<LossOptions> all;
  for (const Divergence divergence :
       {Divergence::kForwardKl, Divergence::kReverseKl, Divergence::kJsd, Divergence::kSkewForwardKl,
        Divergence::kSkewReverseKl, Divergence::kTotalVariation}) {
    for (const double beta : {0.2, 0.5}) {
      LossOptions options;
      options.divergence = divergence;
      options.beta = beta;
      options.skew_alpha = beta;
      all.push_back(options);
    }
  }
  return all;
}

// Two outcomes, as probabilities.
at::Tensor plain(const at::Tensor& log_p, const at::Tensor& log_q, const LossOptions& options, double temperature) {
  const at::Tensor yes_p = (log_p / temperature).exp(), yes_q = (log_q / temperature).exp();
  const at::Tensor p = at::stack({yes_p, 1 - yes_p}), q = at::stack({yes_q, 1 - yes_q});
  const auto kl = [](const at::Tensor& a, const at::Tensor& b) { return (a * (a / b).log()).sum(0); };
  at::Tensor loss;
  switch (options.divergence) {
    case Divergence::kForwardKl:
      loss = kl(p, q);
      break;
    case Divergence::kReverseKl:
      loss = kl(q, p);
      break;
    case Divergence::kJsd: {
      const at::Tensor m = options.beta * p + (1 - options.beta) * q;
      loss = options.beta * kl(p, m) + (1 - options.beta) * kl(q, m);
      break;
    }
    case Divergence::kSkewForwardKl:
      loss = kl(p, options.skew_alpha * p + (1 - options.skew_alpha) * q);
      break;
    case Divergence::kSkewReverseKl:
      loss = kl(q, options.skew_alpha * q + (1 - options.skew_alpha) * p);
      break;
    default:
      loss = (p - q).abs().sum(0) / 2;
  }
  return temperature * loss;
}

TEST(SpansTest, ValueAndSlopeAreThoseOfTheDefinition) {
  const at::Tensor log_p = at::tensor({-0.01, -0.3, -2.0, -5.0, -9.0, -0.7, -4.0}, at::kDouble);
  const at::Tensor log_q = at::tensor({-0.5, -0.02, -3.0, -0.4, -11.0, -0.6, -2.5}, at::kDouble);
  for (const LossOptions& options : divergences()) {
    for (const double temperature : {1.0, 3.0, 100.0}) {
      const at::Tensor variable = log_q.clone().requires_grad_(true);
      const at::Tensor expected = plain(log_p, variable, options, temperature);
      const at::Tensor slope = torch::autograd::grad({expected.sum()}, {variable})[0];
      const SpanLoss found = span_divergence(log_p, log_q, options, {.temperature = temperature});
      const std::string what = absl::StrCat(base::enum_name(options.divergence), " at ", temperature);
      EXPECT_TRUE(at::allclose(found.loss_Z, expected.detach(), 1e-9, 1e-12)) << what;
      EXPECT_TRUE(at::allclose(found.slope_Z, slope, 1e-9, 1e-12)) << what;
    }
  }
}

TEST(SpansTest, LimitsAreFiniteAndEqualModelsHaveNoSlope) {
  const at::Tensor log = at::tensor({0.0, -1e-9, -1e-7, -1.0, -50.0, -800.0, -1e4}, at::kDouble);
  const at::Tensor log_p = log.repeat({7}), log_q = log.repeat_interleave(7);
  for (const LossOptions& options : divergences()) {
    for (const double temperature : {1.0, 100.0}) {
      const SpanLoss found = span_divergence(log_p, log_q, options, {.temperature = temperature});
      const std::string what = absl::StrCat(base::enum_name(options.divergence), " at ", temperature);
      EXPECT_TRUE(at::isfinite(found.loss_Z).all().item<bool>()) << what << found.loss_Z;
      EXPECT_TRUE(at::isfinite(found.slope_Z).all().item<bool>()) << what << found.slope_Z;
      EXPECT_GE(found.loss_Z.min().item<double>(), 0) << what;
      const at::Tensor equal = log_p.eq(log_q);
      EXPECT_LT(found.loss_Z.masked_select(equal).abs().max().item<double>(), 1e-12) << what;
      EXPECT_LT(found.slope_Z.masked_select(equal).abs().max().item<double>(), 1e-9) << what;
    }
  }
}

TEST(SpansTest, WithoutADivergenceThereIsNoLoss) {
  LossOptions options;
  options.divergence = Divergence::kNone;
  const at::Tensor log = at::tensor({-1.0, -2.0}, at::kDouble);
  EXPECT_EQ(span_divergence(log, log - 1, options, {}).slope_Z.abs().sum().item<double>(), 0);
  EXPECT_ANY_THROW(span_divergence(log.to(at::kFloat), log, options, {}));
}

} // namespace
} // namespace distill::losses
