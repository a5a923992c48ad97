#pragma once

#include <ATen/core/Tensor.h>

#include "trainer/models/model_config.h"
#include "trainer/models/ops/routing.h"

// How evenly a model's routers share the tokens among the experts. N tokens, E experts, R routers (layers that have
// one).
namespace distill::models {

// The numbers that a model's routers add up over micro-batches and ranks, fp64, in one tensor. Padding is left out.
enum RouterSum : int64_t {
  kRouterEntropy, // of the router's probabilities, nats; over tokens and routers
  kRoutedTokens, // tokens of each router, of all of them
  kBalanceLoss, // over micro-batches
  kBalancedMicroBatches,
  kVisits // from here: the visits of each expert of each router, [R, E]
};

// The number of the layers that have a router.
int64_t router_count(const ModelConfig& config);
// The number of a model's RouterSums; 0: it has no experts.
int64_t router_sums(const ModelConfig& config);

// The routers of one micro-batch, and the auxiliary loss that asks them to share the tokens evenly. The loss is that of
// transformers' load_balancing_loss_func (equations 4 to 6 of Switch Transformers, arXiv 2101.03961): E times the sum
// over experts of f_e P_e, where f_e is the number of visits and P_e the sum of the router's probabilities, each over
// all tokens and all routers of the micro-batch and divided by R times the number of tokens. f_e has no gradient.
class RouterBalance {
 public:
  // `sums`: RouterSums that are added to. `real_N`: 1 for each token, 0 for padding, in the dtype of the router's
  // probabilities; `real_tokens`: its sum. `scale`: multiplies the loss in the gradients; 0: there is no such loss.
  RouterBalance(
      const ModelConfig& config, at::Tensor sums, const at::Tensor& real_N, int64_t real_tokens, double scale);

  // In the forward pass, router after router. `first_token`: that of the routing, whose tokens may be a part of the
  // micro-batch's; the last part ends with the micro-batch's last token.
  void observe(const Routing& routing, int64_t first_token = 0);
  // Call when all of them have been observed.
  void finish_forward();
  // The gradient of the loss by a router's probabilities [N, E]; undefined: there is no such loss.
  at::Tensor probability_gradient(const Routing& routing, int64_t first_token = 0) const;

 private:
  double rows() const;

  int64_t routers_, experts_;
  at::Tensor sums_;
  at::Tensor real_N1_;
  int64_t real_tokens_;
  double scale_;
  int64_t observed_ = 0; // routers
  at::Tensor visits_E_, probs_E_; // sums over the tokens of all routers
};

} // namespace distill::models
