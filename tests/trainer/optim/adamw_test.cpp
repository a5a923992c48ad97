#include "trainer/optim/adamw.h"

#include <ATen/CPUGeneratorImpl.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/trainer/models/llama_like.h"

namespace distill::optim {
namespace {

models::ModelConfig tiny_config(bool tied) {
  models::LayerKind kind;
  kind.attention.qkv_bias = true;
  kind.attention.qk_norm.emplace();
  models::ModelConfig config = models::llama_like(
      {.vocab = 37,
       .hidden = 24,
       .ffn = 40,
       .layers = 2,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 6,
       .max_positions = 64},
      kind);
  config.tie_word_embeddings = tied;
  return config;
}

// A model whose parameters and gradients are random, gaps and padding zero.
std::unique_ptr<sharding::ModelShards> random_model(
    bool tied, int64_t rank = 0, int64_t world_size = 1, sharding::StateMemory state = {}) {
  sharding::ShardOptions options;
  options.state = std::move(state);
  options.trainable = true;
  options.rank = rank;
  options.world_size = world_size;
  auto model = std::make_unique<sharding::ModelShards>(tiny_config(tied), options);
  for (int64_t i = 0; i < model->num_units(); ++i) {
    sharding::UnitShard& unit = model->unit(i);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + i);
    at::Tensor weights = at::zeros({unit.shard.padded_numel}), gradient = at::zeros({unit.shard.padded_numel});
    for (const models::ParamLayout& param : unit.layout.params) {
      unit.layout.view(weights, param.name).normal_(0, 1, generator);
      unit.layout.view(gradient, param.name).normal_(0, 1, generator);
    }
    unit.master.copy_(weights.narrow(0, unit.shard.begin, unit.shard.numel));
    unit.gradient = gradient.narrow(0, unit.shard.begin, unit.shard.numel).clone();
  }
  return model;
}

GradNorm measure(const sharding::ModelShards& model, double max_norm) {
  return grad_norm_of_square(grad_norm_square(model), max_norm);
}

using config::RoundedDtype;

config::OptimizerSection optimizer_options(RoundedDtype moments = RoundedDtype::kFloat32) {
  config::OptimizerSection options;
  options.moments = moments;
  options.beta1 = 0.9;
  options.beta2 = 0.95;
  options.eps = 1e-8;
  options.weight_decay = 0.1;
  return options;
}

// Loshchilov and Hutter's algorithm 2 in fp64, one parameter after the other.
struct Reference {
  std::vector<at::Tensor> params, exp_avg, exp_avg_sq;
  int64_t t = 0;

  void step(const std::vector<at::Tensor>& gradients, const std::vector<bool>& decays, double lr) {
    const auto options = optimizer_options();
    ++t;
    for (size_t i = 0; i < params.size(); ++i) {
      if (decays[i]) {
        params[i] = params[i] * (1 - lr * options.weight_decay);
      }
      exp_avg[i] = options.beta1 * exp_avg[i] + (1 - options.beta1) * gradients[i];
      exp_avg_sq[i] = options.beta2 * exp_avg_sq[i] + (1 - options.beta2) * gradients[i] * gradients[i];
      const at::Tensor m = exp_avg[i] / (1 - std::pow(options.beta1, t));
      const at::Tensor v = exp_avg_sq[i] / (1 - std::pow(options.beta2, t));
      params[i] = params[i] - lr * m / (v.sqrt() + options.eps);
    }
  }
};

class AdamWTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    at::set_num_threads(1); // tiny tensors: threads cost more than they save
  }
};
INSTANTIATE_TEST_SUITE_P(TiedAndUntied, AdamWTest, testing::Bool());

TEST_P(AdamWTest, FollowsTheAlgorithmInFp64WithDecayOnMatricesOnly) {
  auto model = random_model(GetParam());
  AdamW optimizer(*model, optimizer_options());
  Reference reference;
  std::vector<at::Tensor> gradients;
  std::vector<bool> decays;
  std::vector<at::Tensor> views;
  for (int64_t i = 0; i < model->num_units(); ++i) {
    for (const models::ParamLayout& param : model->unit(i).layout.params) {
      views.push_back(model->unit(i).layout.view(model->unit(i).master, param.name));
      reference.params.push_back(views.back().to(at::kDouble));
      reference.exp_avg.push_back(at::zeros_like(reference.params.back()));
      reference.exp_avg_sq.push_back(at::zeros_like(reference.params.back()));
      gradients.push_back(model->unit(i).layout.view(model->unit(i).gradient, param.name).to(at::kDouble));
      decays.push_back(param.shape.size() > 1);
    }
  }
  at::Tensor squares = at::zeros({}, at::kDouble);
  for (const at::Tensor& gradient : gradients) {
    squares += gradient.pow(2).sum();
  }
  const double norm = squares.sqrt().item<double>();
  const double max_norm = norm / 3;
  for (int step = 0; step < 3; ++step) {
    std::vector<at::Tensor> clipped;
    for (const at::Tensor& gradient : gradients) {
      clipped.push_back(gradient / 3);
    }
    const GradNorm grad_norm = measure(*model, max_norm);
    EXPECT_NEAR(grad_norm.norm.item<float>() / norm, 1, 1e-6);
    optimizer.step(0.01 * (step + 1), grad_norm);
    reference.step(clipped, decays, 0.01 * (step + 1));
  }
  for (size_t i = 0; i < views.size(); ++i) {
    EXPECT_TRUE(at::allclose(views[i].to(at::kDouble), reference.params[i], 1e-5, 1e-6)) << i;
  }
}

TEST(AdamW, NonFiniteGradientsChangeNothing) {
  auto model = random_model(false);
  AdamW optimizer(*model, optimizer_options());
  for (const double bad : {std::nan(""), static_cast<double>(INFINITY)}) {
    const at::Tensor before = model->unit(1).master.clone();
    const at::Tensor clean = model->unit(1).gradient.clone();
    model->unit(1).gradient[3] = bad;
    const GradNorm grad_norm = measure(*model, 1.0);
    EXPECT_EQ(grad_norm.found_inf.item<float>(), 1);
    optimizer.step(0.1, grad_norm);
    EXPECT_TRUE(at::equal(before, model->unit(1).master));
    EXPECT_TRUE(at::equal(optimizer.moments(1).exp_avg, at::zeros_like(before)));
    EXPECT_EQ(optimizer.step_count().item<float>(), 0);
    model->unit(1).gradient.copy_(clean);
  }
  optimizer.step(0.1, measure(*model, 1.0));
  EXPECT_EQ(optimizer.step_count().item<float>(), 1);
}

// Moments in bf16 too: how they are rounded does not depend on the ranks.
TEST(AdamW, ShardsUpdateLikeTheWholeUnit) {
  for (const RoundedDtype moments : {RoundedDtype::kFloat32, RoundedDtype::kBFloat16}) {
    auto whole = random_model(false);
    AdamW whole_optimizer(*whole, optimizer_options(moments));
    const GradNorm grad_norm = measure(*whole, 0);
    constexpr int kSteps = 3;
    const auto steps = [&](AdamW& optimizer) {
      for (int step = 0; step < kSteps; ++step) {
        optimizer.step(0.05, grad_norm);
      }
    };
    steps(whole_optimizer);
    constexpr int64_t kRanks = 3;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      auto part = random_model(false, rank, kRanks);
      AdamW optimizer(*part, optimizer_options(moments));
      steps(optimizer);
      for (int64_t i = 0; i < part->num_units(); ++i) {
        const sharding::ShardRange& shard = part->unit(i).shard;
        const int64_t count = std::min(shard.end(), whole->unit(i).layout.numel) - shard.begin;
        if (count <= 0) {
          continue;
        }
        const auto same = [&](const at::Tensor& own, const at::Tensor& all) {
          return at::equal(own.narrow(0, 0, count), all.narrow(0, shard.begin, count));
        };
        EXPECT_TRUE(same(part->unit(i).master, whole->unit(i).master));
        EXPECT_TRUE(same(optimizer.moments(i).exp_avg, whole_optimizer.moments(i).exp_avg));
        EXPECT_TRUE(same(optimizer.moments(i).exp_avg_sq, whole_optimizer.moments(i).exp_avg_sq));
      }
    }
  }
}

// The error of a step with bf16 moments is that of their rounding: 2^-8 of each moment, whose expectation is exact.
TEST_P(AdamWTest, MomentsInBFloat16StayNearTheAlgorithmInFp64) {
  constexpr int kSteps = 60;
  constexpr double kLr = 0.01;
  const auto difference = [&](RoundedDtype moments) {
    auto model = random_model(GetParam());
    AdamW optimizer(*model, optimizer_options(moments));
    const int64_t unit = model->block_unit(0);
    const models::UnitLayout& layout = model->unit(unit).layout;
    Reference reference{{model->unit(unit).master.to(at::kDouble)}, {}, {}};
    reference.exp_avg = reference.exp_avg_sq = {at::zeros_like(reference.params[0])};
    auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    const GradNorm norm = measure(*model, 0);
    for (int step = 0; step < kSteps; ++step) {
      const at::Tensor gradient = at::zeros({layout.numel}).normal_(0.5, 1, generator);
      for (int64_t i = 0; i < model->num_units(); ++i) {
        model->unit(i).gradient = at::zeros_like(model->unit(i).master);
      }
      model->unit(unit).gradient.narrow(0, 0, layout.numel).copy_(gradient);
      optimizer.step(kLr, norm);
      reference.step({gradient.to(at::kDouble)}, {true}, kLr);
    }
    const int64_t begin = layout.find("qkv")->offset, end = layout.numel; // matrices, which decay
    const at::Tensor moved = model->unit(unit).master.narrow(0, begin, end - begin).to(at::kDouble);
    const at::Tensor error = moved - reference.params[0].narrow(0, begin, end - begin);
    return std::pair(error.abs().mean().item<double>(), std::abs(error.mean().item<double>()));
  };
  const auto [fp32, fp32_bias] = difference(RoundedDtype::kFloat32);
  const auto [bf16, bf16_bias] = difference(RoundedDtype::kBFloat16);
  EXPECT_LT(fp32, 5e-6);
  EXPECT_GT(bf16, fp32) << "they are rounded";
  EXPECT_LT(bf16, 0.01 * kLr * kSteps) << "of the distance that a parameter may go";
  EXPECT_LT(bf16_bias, 0.3 * bf16) << "errors in both directions";
}

// With beta2 = 0.999 the second moment moves by less than bf16 resolves in each step: rounding to the nearest value
// would leave it where it is.
TEST(AdamW, StochasticRoundingKeepsTheExpectationOfTheSecondMoment) {
  config::OptimizerSection options = optimizer_options(RoundedDtype::kBFloat16);
  options.beta2 = 0.999;
  auto model = random_model(false);
  AdamW optimizer(*model, options);
  const GradNorm norm = measure(*model, 0);
  constexpr int kSteps = 300;
  double exact = 0, nearest = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double gradient = step < 3 ? 1 : 2; // the moment grows from 0.003 towards 4
    for (int64_t i = 0; i < model->num_units(); ++i) {
      model->unit(i).gradient = at::full_like(model->unit(i).master, gradient);
    }
    optimizer.step(0, norm);
    exact = 0.999 * exact + 0.001 * gradient * gradient;
    nearest = static_cast<double>(
        static_cast<float>(at::BFloat16(static_cast<float>(0.999 * nearest + 0.001 * gradient * gradient))));
  }
  const int64_t unit = model->block_unit(0);
  const at::Tensor moment =
      optimizer.moments(unit).exp_avg_sq.narrow(0, 0, model->unit(unit).layout.numel).to(at::kDouble);
  EXPECT_EQ(optimizer.moments(unit).exp_avg_sq.scalar_type(), at::kBFloat16);
  const double mean = moment.mean().item<double>();
  const double error_of_mean = moment.std().item<double>() / std::sqrt(static_cast<double>(moment.numel()));
  EXPECT_NEAR(mean, exact, 5 * error_of_mean);
  EXPECT_GT(std::abs(nearest - exact), 20 * error_of_mean) << "the test can tell";
}

// State of tiny_config()'s units, of which the places of two blocks are given, in new host memory.
sharding::StateMemory host_memory(bool tied, std::vector<models::StatePlace> blocks, int64_t stages = 4) {
  return {models::places_of_units(blocks, tied), *device::HostSlab::allocate(1 << 20, at::kCPU, 1, "test"), stages};
}

// Masters, moments and compute copies of both, once the host one's update has ended.
void expect_equal(
    sharding::ModelShards& device, AdamW& device_optimizer, sharding::ModelShards& host, AdamW& optimizer) {
  for (int64_t i = 0; i < device.num_units(); ++i) {
    EXPECT_TRUE(at::equal(host.weights(i), device.weights(i))) << i;
    EXPECT_TRUE(at::equal(optimizer.moments(i).exp_avg, device_optimizer.moments(i).exp_avg)) << i;
    EXPECT_TRUE(at::equal(optimizer.moments(i).exp_avg_sq, device_optimizer.moments(i).exp_avg_sq)) << i;
    EXPECT_TRUE(at::equal(host.unit(i).master, device.unit(i).master)) << i;
  }
  EXPECT_TRUE(at::equal(optimizer.step_count(), device_optimizer.step_count()));
}

// Ways to store the state of two blocks, the size of pieces, and the number of stages.
struct OnHost {
  std::vector<models::StatePlace> blocks;
  int64_t piece = 0;
  int64_t stages = 4;
  RoundedDtype moments = RoundedDtype::kFloat32;
};

TEST_P(AdamWTest, StateInHostMemoryIsUpdatedBitForBitInPiecesOfAnySize) {
  using enum models::StatePlace;
  const OnHost cases[] = {
      {{kHost, kHost}, 64},
      {{kHost, kHost}, 192},
      {{kHost, kHost}},
      {{kHost, kDevice}, 64},
      {{kDevice, kHost}},
      {{kDevice, kHost}, 64, 1},
      {{kHost, kHost}, 64, 7},
      {{kHost, kDevice}, 64, 1000},
      {{kHost, kDevice}, 64, 4, RoundedDtype::kBFloat16},
      {{kHost, kHost}, 0, 4, RoundedDtype::kBFloat16},
      {{kCpu, kCpu}},
      {{kCpu, kDevice}, 64},
      {{kHost, kCpu}, 192, 2},
      {{kCpu, kHost}, 64, 4, RoundedDtype::kBFloat16}};
  for (const auto& [blocks, piece, stages, moments] : cases) {
    for (const int64_t rank : {0, 2}) {
      const int64_t ranks = rank == 0 ? 1 : 3;
      auto host = random_model(GetParam(), rank, ranks, host_memory(GetParam(), blocks, stages));
      auto device = random_model(GetParam(), rank, ranks);
      EXPECT_EQ(host->state_on_host(1), blocks[0] != kDevice);
      EXPECT_EQ(host->updated_by_cpu(2), blocks[1] == kCpu);
      EXPECT_EQ(host->state_on_host(host->embedding_unit()), blocks[0] != kDevice);
      EXPECT_EQ(host->updated_by_cpu(host->head_unit()), blocks[GetParam() ? 0 : 1] == kCpu);
      AdamW host_optimizer(*host, optimizer_options(moments), piece);
      AdamW device_optimizer(*device, optimizer_options(moments));
      for (int step = 0; step < 4; ++step) {
        const auto gradients = random_model(GetParam(), rank, ranks);
        for (int64_t i = 0; i < host->num_units(); ++i) {
          host->unit(i).gradient = gradients->unit(i).gradient.clone();
          device->unit(i).gradient = gradients->unit(i).gradient.clone();
          if (step == 2) { // is skipped
            host->unit(i).gradient[0] = device->unit(i).gradient[0] = std::nan("");
          }
        }
        if (step % 2 == 1) { // as in a backward pass; otherwise the step itself does what is left
          host->reduce(host->num_units() - 1, /*last=*/true);
          host->reduce(1, /*last=*/true);
        }
        host_optimizer.step(0.01 * (step + 1), measure(*host, 0.5));
        device_optimizer.step(0.01 * (step + 1), measure(*device, 0.5));
        host->drop_gradients();
        expect_equal(*device, device_optimizer, *host, host_optimizer);
      }
    }
  }
}

TEST(AdamW, UpdatesAreQueuedNoEarlierThanTheirUnitsAreNeeded) {
  using enum models::StatePlace;
  for (const models::StatePlace place : {kHost, kCpu}) {
    auto model = random_model(false, 0, 1, host_memory(false, {place, place}));
    AdamW optimizer(*model, optimizer_options(), /*piece=*/64);
    const at::Tensor before = model->unit(2).master.clone();
    optimizer.step(0.1, measure(*model, 1.0));
    model->weights(1);
    EXPECT_TRUE(at::equal(model->unit(2).master, before));
    optimizer.wait();
    EXPECT_FALSE(at::equal(model->unit(2).master, before));
  }
}

TEST(AdamW, AnOptimizerThatIsGoneHasFinishedItsLastStep) {
  using enum models::StatePlace;
  auto model = random_model(false, 0, 1, host_memory(false, {kHost, kCpu})), same = random_model(false);
  std::make_unique<AdamW>(*model, optimizer_options())->step(0.1, measure(*model, 1.0));
  std::make_unique<AdamW>(*same, optimizer_options())->step(0.1, measure(*same, 1.0));
  for (int64_t i = 0; i < model->num_units(); ++i) {
    EXPECT_TRUE(at::equal(model->weights(i), same->weights(i)));
  }
}

TEST(AdamW, GradientsLiveUntilTheirUnitIsAskedForAfterAnUpdateBesideTheNextStep) {
  using enum models::StatePlace;
  auto model = random_model(false, 0, 1, host_memory(false, {kHost, kHost}));
  AdamW optimizer(*model, optimizer_options());
  std::vector<bool> waits;
  model->observe_updates([&](bool begins) { waits.push_back(begins); });
  optimizer.step(0.1, measure(*model, 1.0));
  model->drop_gradients();
  EXPECT_TRUE(model->unit(1).gradient.defined());
  EXPECT_THROW(model->gradient(1), c10::Error) << "a backward pass before the unit's update was waited for";
  model->weights(1);
  EXPECT_FALSE(model->unit(1).gradient.defined());
  EXPECT_TRUE(model->unit(2).gradient.defined());
  EXPECT_EQ(waits, (std::vector<bool>{true, false}));
  model->weights(1);
  EXPECT_EQ(waits.size(), 2U) << "once a step";
  model->finish_updates();
  EXPECT_FALSE(model->unit(2).gradient.defined());
}

// The compute stream waits for units on the host alone, and for none of them where a unit on the device is used.
TEST(AdamW, UnitsOnTheDeviceDoNotWaitForThoseOnTheHost) {
  using enum models::StatePlace;
  auto model = random_model(false, 0, 1, host_memory(false, {kDevice, kHost}));
  AdamW optimizer(*model, optimizer_options());
  std::vector<bool> waits;
  model->observe_updates([&](bool begins) { waits.push_back(begins); });
  optimizer.step(0.1, measure(*model, 1.0));
  model->drop_gradients();
  for (const int64_t unit : {0, 1}) { // the embedding and the first block
    EXPECT_FALSE(model->unit(unit).gradient.defined()) << "updated on the compute stream";
    model->weights(unit);
  }
  EXPECT_TRUE(waits.empty());
  EXPECT_TRUE(model->unit(2).gradient.defined());
  model->weights(2);
  EXPECT_EQ(waits.size(), 2U);
  EXPECT_TRUE(model->unit(3).gradient.defined()) << "the head's";
}

TEST(GradNorm, NoClippingWithoutAMaximum) {
  auto model = random_model(false);
  EXPECT_EQ(measure(*model, 0).grad_scale.item<float>(), 1);
  EXPECT_EQ(measure(*model, 1e9).grad_scale.item<float>(), 1);
  const GradNorm clipped = measure(*model, 0.5);
  EXPECT_NEAR(clipped.grad_scale.item<float>(), clipped.norm.item<float>() / 0.5, 1e-3);
}

} // namespace
} // namespace distill::optim
