#include "trainer/models/router_balance.h"

#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/models/reference_model.h"
#include "tests/trainer/models/test_device.h"

namespace distill::models {
namespace {

class RouterBalanceTest : public DeviceTest {
 protected:
  static constexpr int64_t kTokens = 29, kExperts = 6, kPerToken = 2, kRouters = 3;

  // Layers with and without experts take turns.
  static ModelConfig config() {
    LayerKind dense, sparse;
    sparse.mlp.experts = ExpertsSpec{kExperts, kPerToken, /*normalise=*/true};
    ModelConfig config = llama_like({});
    config.set_layers({sparse, dense, sparse, dense, sparse});
    return config;
  }

  static at::Tensor padding_mask() {
    at::Tensor real_N = at::ones({kTokens}, options());
    real_N.slice(0, 11, 15).fill_(0);
    return real_N;
  }
};

// The loss as transformers' load_balancing_loss_func computes it, from the logits of all layers one below the other.
at::Tensor reference_loss(const std::vector<at::Tensor>& logits, const at::Tensor& real_N, int64_t per_token) {
  const int64_t experts = logits[0].size(1);
  const at::Tensor probs = at::softmax(at::cat(logits), 1);
  const at::Tensor real = real_N.repeat({static_cast<int64_t>(logits.size())}).unsqueeze(1);
  const at::Tensor chosen = std::get<1>(probs.topk(per_token, 1));
  const at::Tensor visits = at::zeros_like(probs).scatter(1, chosen, 1);
  const at::Tensor share = (visits * real).sum(0) / real.sum(), probability = (probs * real).sum(0) / real.sum();
  return (share.detach() * probability).sum() * static_cast<double>(experts);
}

TEST_F(RouterBalanceTest, LossAndGradientsAreThoseOfTransformers) {
  const double scale = 0.3;
  std::vector<at::Tensor> logits;
  for (int64_t router = 0; router < kRouters; ++router) {
    logits.push_back(leaf(randn({kTokens, kExperts})));
  }
  const at::Tensor real_N = padding_mask();
  const at::Tensor expected = reference_loss(logits, real_N, kPerToken);
  const auto grads = reference_gradients(expected, at::full({}, scale, options()), logits);

  const at::Tensor sums = at::zeros({router_sums(config())}, options());
  RouterBalance balance(config(), sums, real_N, kTokens - 4, scale);
  std::vector<Routing> routings;
  for (const at::Tensor& of_router : logits) {
    routings.push_back(route(of_router.detach(), kPerToken));
    balance.observe(routings.back());
  }
  balance.finish_forward();
  EXPECT_NEAR(sums[kBalanceLoss].item<double>(), expected.item<double>(), 1e-12);
  for (size_t router = 0; router < logits.size(); ++router) {
    const at::Tensor none = at::zeros({kTokens, kPerToken}, options());
    const at::Tensor dlogits =
        routing_backward(routings[router], /*normalise=*/true, none, balance.probability_gradient(routings[router]));
    EXPECT_LT(relative_error(dlogits, grads[router]), 1e-11);
  }
}

TEST_F(RouterBalanceTest, NumbersLeavePaddingOut) {
  const at::Tensor sums = at::zeros({router_sums(config())}, options());
  const at::Tensor logits = randn({kTokens, kExperts});
  const at::Tensor real_N = padding_mask();
  RouterBalance balance(config(), sums, real_N, kTokens - 4, /*scale=*/0);
  const Routing routing = route(logits, kPerToken);
  for (int64_t router = 0; router < kRouters; ++router) {
    balance.observe(routing);
  }
  balance.finish_forward();
  EXPECT_FALSE(balance.probability_gradient(routing).defined());
  const at::Tensor probs = at::softmax(logits, 1);
  const at::Tensor entropy = -(probs * probs.log()).sum(1);
  EXPECT_NEAR(sums[kRouterEntropy].item<double>(), kRouters * (entropy * real_N).sum().item<double>(), 1e-9);
  EXPECT_EQ(sums[kRoutedTokens].item<double>(), kRouters * (kTokens - 4));
  EXPECT_EQ(sums[kBalancedMicroBatches].item<double>(), 1);
  const at::Tensor visits = sums.slice(0, kVisits).view({kRouters, kExperts});
  EXPECT_TRUE(at::equal(visits.sum(1), at::full({kRouters}, (kTokens - 4) * kPerToken, options())));
  EXPECT_TRUE(at::equal(visits[0], visits[2]));
}

// Tiles of the tokens, of which the last one completes a router.
TEST_F(RouterBalanceTest, PartsOfTheTokensAddUpToAllOfThem) {
  const at::Tensor real_N = padding_mask();
  const at::Tensor whole_sums = at::zeros({router_sums(config())}, options());
  const at::Tensor part_sums = at::zeros_like(whole_sums);
  RouterBalance whole(config(), whole_sums, real_N, kTokens - 4, 0.3),
      parts(config(), part_sums, real_N, kTokens - 4, 0.3);
  at::Tensor logits;
  for (int64_t router = 0; router < kRouters; ++router) {
    logits = randn({kTokens, kExperts});
    whole.observe(route(logits, kPerToken));
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 12}, {12, 12}, {24, 5}}) {
      parts.observe(route(logits.narrow(0, first, count), kPerToken), first);
    }
  }
  whole.finish_forward();
  parts.finish_forward();
  EXPECT_LT(relative_error(part_sums, whole_sums), 1e-14);
  const at::Tensor gradient = whole.probability_gradient(route(logits, kPerToken));
  const at::Tensor part = parts.probability_gradient(route(logits.narrow(0, 12, 12), kPerToken), 12);
  EXPECT_LT(relative_error(part, gradient.narrow(0, 12, 12)), 1e-14);
}

TEST_F(RouterBalanceTest, ModelsWithoutExpertsHaveNoNumbers) {
  EXPECT_EQ(router_count(llama_like({})), 0);
  EXPECT_EQ(router_sums(llama_like({})), 0);
  EXPECT_EQ(router_count(config()), kRouters);
}

} // namespace
} // namespace distill::models
