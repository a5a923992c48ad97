#include "trainer/models/router_balance.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace distill::models {

int64_t router_count(const ModelConfig& config) {
  return std::count_if(config.layers.begin(), config.layers.end(), [&](int64_t kind) {
    return config.kinds[static_cast<size_t>(kind)].mlp.experts.has_value();
  });
}

namespace {

// Of every router: a model's layers with experts have equally many.
int64_t expert_count(const ModelConfig& config) {
  for (const LayerKind& kind : config.kinds) {
    if (kind.mlp.experts) {
      return kind.mlp.experts->count;
    }
  }
  return 0;
}

} // namespace

int64_t router_sums(const ModelConfig& config) {
  const int64_t routers = router_count(config);
  return routers == 0 ? 0 : kVisits + routers * expert_count(config);
}

RouterBalance::RouterBalance(
    const ModelConfig& config, at::Tensor sums, const at::Tensor& real_N, int64_t real_tokens, double scale)
    : routers_(router_count(config)),
      experts_(expert_count(config)),
      sums_(std::move(sums)),
      real_N1_(real_N.unsqueeze(1)),
      real_tokens_(real_tokens),
      scale_(scale),
      visits_E_(at::zeros({experts_}, real_N.options())),
      probs_E_(at::zeros({experts_}, real_N.options())) {
  TORCH_CHECK(
      sums_.dim() == 1 && sums_.numel() == router_sums(config), "the sums of ", routers_, " routers are ",
      router_sums(config), " numbers, found ", sums_.sizes());
}

double RouterBalance::rows() const {
  return static_cast<double>(std::max<int64_t>(1, real_tokens_ * routers_));
}

void RouterBalance::observe(const Routing& routing, int64_t first_token) {
  const at::Tensor& probs_NE = routing.probs_NE;
  TORCH_CHECK(
      observed_ < routers_ && probs_NE.size(1) == experts_, "router ", observed_, " of ", routers_, " with ", experts_,
      " experts has probabilities ", probs_NE.sizes());
  const int64_t tokens = probs_NE.size(0);
  const at::Tensor real_N1 = real_N1_.narrow(0, first_token, tokens);
  // Counts are whole numbers, so that their sum is exact in any order.
  at::Tensor visits_E = at::zeros({experts_}, probs_NE.options());
  visits_E.scatter_add_(
      0, routing.experts_NK.flatten(), real_N1.expand_as(routing.experts_NK).reshape({routing.experts_NK.numel()}));
  visits_E_.add_(visits_E);
  probs_E_.add_((probs_NE * real_N1).sum(0));
  sums_.narrow(0, kVisits + observed_ * experts_, experts_).add_(visits_E);
  sums_.narrow(0, kRouterEntropy, 1).sub_((at::xlogy(probs_NE, probs_NE) * real_N1).sum());
  observed_ += first_token + tokens == real_N1_.size(0) ? 1 : 0;
}

void RouterBalance::finish_forward() {
  sums_.narrow(0, kRoutedTokens, 1).add_(static_cast<double>(real_tokens_ * routers_));
  sums_.narrow(0, kBalancedMicroBatches, 1).add_(1);
  const double factor = static_cast<double>(experts_) / (rows() * rows());
  sums_.narrow(0, kBalanceLoss, 1).add_((visits_E_ * probs_E_).sum(), factor);
}

at::Tensor RouterBalance::probability_gradient(const Routing& routing, int64_t first_token) const {
  if (scale_ == 0) {
    return {};
  }
  const double factor = scale_ * static_cast<double>(experts_) / (rows() * rows());
  const at::Tensor real_N1 = real_N1_.narrow(0, first_token, routing.probs_NE.size(0));
  return real_N1.expand_as(routing.probs_NE) * (visits_E_ * factor);
}

} // namespace distill::models
