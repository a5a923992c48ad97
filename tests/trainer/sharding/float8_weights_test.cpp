#include "trainer/sharding/float8_weights.h"

#include <gtest/gtest.h>

#include "tests/trainer/models/counting_weights.h"
#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/sharding/rank_threads.h"
#include "trainer/models/random_weights.h"
#include "trainer/sharding/model_shards.h"

namespace distill::sharding {
namespace {

constexpr int64_t kRanks = 3;

models::ModelConfig small_config() {
  models::LayerKind kind;
  kind.attention.qkv_bias = true;
  models::ModelConfig config = models::llama_like( // shards cut rows
      {.vocab = 37,
       .hidden = 20,
       .ffn = 28,
       .layers = 3,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 10,
       .max_positions = 64},
      kind);
  config.float8 = *models::Float8Products::all_but({"1"}, models::block_products(config));
  return config;
}

// The blocks' parameters on one rank of `ranks`, after the weights were loaded and then changed.
std::vector<models::BlockParams> blocks_of(Communicator* shard_axis, PeerMemory* peers) {
  const models::ModelConfig config = small_config();
  ModelShards model(
      config,
      {.trainable = true,
       .rank = shard_axis != nullptr ? shard_axis->rank() : 0,
       .world_size = shard_axis != nullptr ? shard_axis->size() : 1,
       .peers = peers});
  model.load(*models::random_weights(config, 5));
  std::unique_ptr<WeightSlots> slots;
  if (shard_axis != nullptr) {
    SlotPlan plan;
    model.add_to_plan(plan);
    slots = std::make_unique<WeightSlots>(at::kCPU, *shard_axis, plan);
    model.use_slots(slots.get(), nullptr, Accumulation::kReduceEach);
  }
  for (int64_t i = 0; i < model.num_units(); ++i) {
    model.unit(i).master.mul_(1.7);
  }
  model.refresh_weights();
  std::vector<models::BlockParams> blocks;
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    models::BlockParams params = model.block_params(model.block_unit(block));
    std::vector<at::Tensor*> tensors{&params.attn_norm_H};
    for (const auto& [name, projection] : params.projections()) {
      tensors.insert(tensors.end(), {&projection->weight_OI, &projection->bias_O, &projection->scale_O});
    }
    for (at::Tensor* tensor : tensors) {
      if (tensor->defined()) {
        *tensor = tensor->clone(); // the slot is used again
      }
    }
    model.release(model.block_unit(block));
    blocks.push_back(params);
  }
  return blocks;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) {
    return a.defined() == b.defined();
  }
  return a.scalar_type() == b.scalar_type() && at::equal(a.view(at::kByte), b.view(at::kByte));
}

TEST(Float8Weights, AnyNumberOfRanksHasTheSameBits) {
  const std::vector<models::BlockParams> expected = blocks_of(nullptr, nullptr);
  for (const bool copies : {false, true}) {
    SCOPED_TRACE(copies);
    RankThreads ranks(kRanks);
    std::vector<std::vector<models::BlockParams>> found(kRanks);
    ranks.run([&](int64_t rank) {
      ThreadCommunicator shard_axis(ranks, rank);
      const auto peers = copies ? host_peer_memory(rank, ranks.exchange(rank)) : nullptr;
      found[rank] = blocks_of(&shard_axis, peers.get());
    });
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      for (size_t block = 0; block < expected.size(); ++block) {
        SCOPED_TRACE(testing::Message() << "rank " << rank << ", block " << block);
        const models::BlockParams& a = found[rank][block];
        const models::BlockParams& b = expected[block];
        EXPECT_EQ(a.mlp.down.is_float8(), block != 1); // the exception
        EXPECT_TRUE(same(a.attn_norm_H, b.attn_norm_H));
        const auto own = a.projections(), others = b.projections();
        for (size_t i = 0; i < own.size(); ++i) {
          const models::Projection &x = *own[i].second, &y = *others[i].second;
          EXPECT_TRUE(same(x.weight_OI, y.weight_OI) && same(x.bias_O, y.bias_O) && same(x.scale_O, y.scale_O))
              << own[i].first;
        }
      }
    }
  }
}

TEST(Float8Weights, RanksReadAFrozenModelTogether) {
  models::ModelConfig config = small_config();
  config.hidden_size = 80;
  config.kinds[0].mlp.ffn = 224;
  config.kinds[0].attention.heads = 4;
  config.kinds[0].attention.head_dim = 20;
  const models::CountingWeights all;
  ModelShards one(config, {});
  one.load(all);
  RankThreads ranks(kRanks);
  ranks.run([&](int64_t rank) {
    ThreadCommunicator shard_axis(ranks, rank);
    ModelShards model(config, {.rank = rank, .world_size = kRanks, .shard_axis = &shard_axis});
    const models::CountingWeights weights;
    model.load(weights);
    int64_t most = 0; // an element of a shard is at most one weight; a row that is cut at either end is read whole
    for (int64_t i = 0; i < model.num_units(); ++i) {
      const UnitShard& unit = model.unit(i);
      const at::Tensor whole = one.unit(i).weights;
      const int64_t count = std::min(unit.shard.numel, whole.numel() - unit.shard.begin);
      EXPECT_TRUE(same(unit.weights.narrow(0, 0, count), whole.narrow(0, unit.shard.begin, count)))
          << unit.layout.name << " on rank " << rank;
      most += unit.shard.numel + 2 * config.kinds[0].mlp.ffn;
    }
    EXPECT_LE(weights.read(), most) << "rank " << rank;
    EXPECT_LT(most, 0.4 * static_cast<double>(all.read()));
  });
}

TEST(Float8Weights, TheyAreTheMasterWeightsRounded) {
  const models::ModelConfig config = small_config();
  ModelShards model(config, {.trainable = true});
  model.load(*models::random_weights(config, 5));
  const int64_t unit = model.block_unit(0);
  const models::BlockParams params = model.block_params(unit);
  const models::BlockParams exact = models::block_params(model.unit(unit).layout, model.unit(unit).master);
  const models::Float8Rows expected = models::float8_rows(exact.mlp.down.weight_OI, {.power_of_two = true});
  EXPECT_TRUE(same(params.mlp.down.weight_OI, expected.values_RC) && same(params.mlp.down.scale_O, expected.scale_R));
  EXPECT_TRUE(same(params.mlp_norm_H, exact.mlp_norm_H));
  EXPECT_EQ(model.unit(unit).weights.numel(), model.unit(unit).shard.numel); // a byte for each element
}

TEST(Float8Weights, AModelCanLeaveFloat8AndComeBack) {
  const models::ModelConfig config = small_config();
  ModelShards model(config, {.compute_dtype = at::kBFloat16, .trainable = true, .may_leave_float8 = true});
  model.load(*models::random_weights(config, 5));
  const int64_t unit = model.block_unit(2);
  const at::Tensor float8 = model.block_params(unit).attention.o.weight_OI.clone();
  model.leave_float8(true);
  const models::BlockParams left = model.block_params(unit);
  EXPECT_FALSE(left.attention.o.is_float8());
  const models::BlockParams exact = models::block_params(model.unit(unit).layout, model.unit(unit).master);
  EXPECT_TRUE(same(left.attention.o.weight_OI, exact.attention.o.weight_OI.to(at::kBFloat16)));
  model.leave_float8(false);
  EXPECT_TRUE(same(model.block_params(unit).attention.o.weight_OI, float8));
}

} // namespace
} // namespace distill::sharding
