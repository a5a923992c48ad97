#include "trainer/sharding/model_shards.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/sharding/one_of_many.h"

namespace distill::sharding {
namespace {

models::ModelConfig tiny_config(bool tied) {
  models::LayerKind kind;
  kind.attention.qkv_bias = true;
  models::ModelConfig config = models::llama_like( // matrices whose sizes are no multiples of the alignment
      {.vocab = 37,
       .hidden = 20,
       .ffn = 28,
       .layers = 2,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 10,
       .max_positions = 64},
      kind);
  config.tie_word_embeddings = tied;
  return config;
}

// Memory that nobody wrote is NaN.
class UninitializedIsNan {
 public:
  UninitializedIsNan() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  ~UninitializedIsNan() {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
};

class ModelShardsTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(TiedAndUntied, ModelShardsTest, testing::Bool());

TEST_P(ModelShardsTest, ANewGradientIsZeroExceptForItsMatrices) {
  const UninitializedIsNan nan;
  OneOfMany ranks(1, 3);
  for (const bool slots : {false, true}) {
    ModelShards model(tiny_config(GetParam()), {.trainable = true, .rank = slots ? 1 : 0, .world_size = slots ? 3 : 1});
    SlotPlan plan;
    model.add_to_plan(plan);
    WeightSlots weight_slots(at::kCPU, ranks, plan);
    GradientSlots gradient_slots(at::kCPU, ranks, nullptr, at::kFloat);
    if (slots) {
      model.use_slots(&weight_slots, &gradient_slots, Accumulation::kReduceEach);
    }
    for (int64_t i = 0; i < model.num_units(); ++i) {
      const UnitGradient gradient = model.gradient(i);
      ASSERT_TRUE(gradient.is_new);
      EXPECT_EQ(gradient.flat.numel(), model.unit(i).shard.padded_numel);
      at::Tensor written = gradient.flat.clone();
      for (const models::ParamLayout& param : model.unit(i).layout.params) {
        at::Tensor view = model.unit(i).layout.view(written, param.name);
        EXPECT_EQ(view.isnan().all().item<bool>(), param.is_matrix) << model.unit(i).layout.name << " " << param.name;
        view.zero_();
      }
      EXPECT_TRUE(written.eq(0).all().item<bool>()) << model.unit(i).layout.name << ": gaps and padding";
      EXPECT_FALSE(model.gradient(i).is_new);
    }
  }
}

TEST(ModelShards, GradientsExistFromTheBackwardPassUntilTheyAreDropped) {
  ModelShards model(tiny_config(false), {.trainable = true});
  EXPECT_FALSE(model.unit(1).gradient.defined());
  at::Tensor flat = model.gradient(1).flat;
  model.reduce(1, /*last=*/true);
  model.finish_gradients();
  EXPECT_TRUE(model.unit(1).gradient.is_same(flat));
  model.drop_gradients();
  EXPECT_EQ(flat.storage().use_count(), 1);
}

TEST(ModelShards, FullGradientsAreReducedInTheLastMicroBatchAlone) {
  for (const Accumulation accumulation : {Accumulation::kReduceEach, Accumulation::kKeepFull}) {
    OneOfMany ranks(0, 2);
    ModelShards model(tiny_config(false), {.trainable = true, .rank = 0, .world_size = 2});
    SlotPlan plan;
    model.add_to_plan(plan);
    WeightSlots weight_slots(at::kCPU, ranks, plan);
    GradientSlots gradient_slots(at::kCPU, ranks, nullptr, at::kFloat);
    model.use_slots(&weight_slots, &gradient_slots, accumulation);
    for (int64_t batch = 0; batch < 3; ++batch) {
      const UnitGradient gradient = model.gradient(1);
      gradient.is_new ? gradient.flat.fill_(1) : gradient.flat.add_(1);
      model.reduce(1, /*last=*/batch == 2);
    }
    model.finish_gradients();
    EXPECT_EQ(ranks.reductions, accumulation == Accumulation::kKeepFull ? 1 : 3);
    EXPECT_TRUE(model.unit(1).gradient.eq(3 * 2).all().item<bool>());
  }
}

// In bf16, on one process and on several with one sum over all of them, and however many replicas there are.
TEST(ModelShards, GradientShardsInBFloat16AreRoundedAlikeOnAnyRanks) {
  constexpr int64_t kBatches = 3;
  const auto gradient_of = [](int64_t numel, int64_t batch) { // of the whole unit, exact in fp32 when summed
    at::Tensor whole = at::zeros({numel});
    auto generator = at::make_generator<at::CPUGeneratorImpl>(batch);
    whole.narrow(0, 0, 3000).random_(1 << 12, generator);
    return whole;
  };
  const auto train = [&](ModelShards& model, double share) {
    model.begin_step(11);
    for (int64_t batch = 0; batch < kBatches; ++batch) {
      const UnitGradient gradient = model.gradient(1);
      EXPECT_TRUE(gradient.is_new) << "of each micro-batch";
      EXPECT_EQ(gradient.flat.scalar_type(), at::kFloat);
      gradient.flat.copy_(gradient_of(gradient.flat.numel(), batch) * share);
      model.reduce(1, /*last=*/batch == kBatches - 1);
    }
    model.finish_gradients();
    EXPECT_EQ(model.unit(1).gradient.scalar_type(), at::kBFloat16);
    return model.unit(1).gradient;
  };
  ModelShards alone(tiny_config(false), {.trainable = true, .gradient_dtype = at::kBFloat16});
  const at::Tensor expected = train(alone, 1).narrow(0, 0, 3000);
  const at::Tensor exact = gradient_of(3000, 0) + gradient_of(3000, 1) + gradient_of(3000, 2);
  EXPECT_FALSE(at::equal(expected.to(at::kFloat), exact)) << "they are rounded";
  EXPECT_LT((expected.to(at::kFloat) - exact).norm().item<double>(), 0.01 * exact.norm().item<double>());
  for (int64_t rank = 0; rank < 2; ++rank) {
    OneOfMany ranks(rank, 2);
    ModelShards model(
        tiny_config(false), {.trainable = true, .rank = rank, .world_size = 2, .gradient_dtype = at::kBFloat16});
    SlotPlan plan;
    model.add_to_plan(plan);
    WeightSlots weight_slots(at::kCPU, ranks, plan);
    GradientSlots gradient_slots(at::kCPU, ranks, nullptr, at::kFloat);
    model.use_slots(&weight_slots, &gradient_slots, Accumulation::kReduceEach);
    const ShardRange shard = model.unit(1).shard;
    const int64_t count = std::min<int64_t>(3000, shard.end()) - shard.begin;
    ASSERT_GT(count, 0);
    const at::Tensor found = train(model, 0.5).narrow(0, 0, count);
    EXPECT_TRUE(at::equal(found, expected.narrow(0, shard.begin, count))) << rank;
  }
}

TEST(ModelShards, WithSlotsThereIsNoCopyBesidesTheMasterWeights) {
  OneOfMany ranks(0, 2);
  ModelShards model(
      tiny_config(false), {.compute_dtype = at::kBFloat16, .trainable = true, .rank = 0, .world_size = 2});
  ModelShards frozen(tiny_config(false), {.compute_dtype = at::kBFloat16, .rank = 0, .world_size = 2});
  model.unit(1).master.normal_();
  SlotPlan plan;
  model.add_to_plan(plan);
  WeightSlots weight_slots(at::kCPU, ranks, plan);
  GradientSlots gradient_slots(at::kCPU, ranks, nullptr, at::kFloat);
  model.use_slots(&weight_slots, &gradient_slots, Accumulation::kReduceEach);
  frozen.use_slots(&weight_slots, nullptr, Accumulation::kReduceEach);
  EXPECT_FALSE(model.unit(1).weights.defined());
  EXPECT_TRUE(frozen.unit(1).weights.defined());
  model.refresh_weights();
  const at::Tensor whole = model.weights(1);
  EXPECT_EQ(whole.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(whole.narrow(0, 0, model.unit(1).shard.numel), model.unit(1).master.to(at::kBFloat16)));
}

} // namespace
} // namespace distill::sharding
