#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/sharding/rank_threads.h"
#include "trainer/sharding/model_shards.h"

namespace distill::sharding {
namespace {

constexpr int64_t kRanks = 3;

models::ModelConfig tiny_config() {
  return models::llama_like( // matrices whose sizes are no multiples of the alignment
      {.vocab = 37,
       .hidden = 20,
       .ffn = 28,
       .layers = 3,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 10,
       .max_positions = 64});
}

double value_of(int64_t step, int64_t rank, int64_t unit) {
  return static_cast<double>(100 * step + 10 * rank + unit);
}

// The model of one rank with slots, whose weights the test writes as an optimizer does.
struct Rank {
  std::unique_ptr<PeerMemory> memory;
  ThreadCommunicator gather;
  ModelShards model;
  WeightSlots slots;

  Rank(RankThreads& ranks, int64_t rank, ShardOptions options)
      : memory(host_peer_memory(rank, ranks.exchange(rank))),
        gather(ranks, rank),
        model(tiny_config(), with_peers(options, rank)),
        slots(at::kCPU, gather, plan_of(model)) {
    model.use_slots(&slots, nullptr, Accumulation::kReduceEach);
  }
  ShardOptions with_peers(ShardOptions options, int64_t rank) const {
    options.rank = rank;
    options.world_size = kRanks;
    options.peers = memory.get();
    return options;
  }
  static SlotPlan plan_of(const ModelShards& model) {
    SlotPlan plan;
    model.add_to_plan(plan);
    return plan;
  }
  void expect_units_of(int64_t step) {
    for (int64_t unit = 0; unit < model.num_units(); ++unit) {
      const at::Tensor whole = model.weights(unit);
      const int64_t numel = model.unit(unit).shard.numel;
      ASSERT_EQ(whole.numel(), kRanks * numel);
      for (int64_t rank = 0; rank < kRanks; ++rank) {
        EXPECT_TRUE(whole.narrow(0, rank * numel, numel).eq(value_of(step, rank, unit)).all().item<bool>())
            << "step " << step << ", unit " << unit << ", the part of rank " << rank;
      }
      model.release(unit);
      model.retire(unit);
    }
  }
};

// The slowest rank decides when weights are read: without the meeting before the first copy, the others read the old.
void write_slowly(Rank& rank, int64_t step) {
  std::this_thread::sleep_for(std::chrono::milliseconds(15 * rank.gather.rank()));
  for (int64_t unit = 0; unit < rank.model.num_units(); ++unit) {
    rank.model.unit(unit).weights.fill_(value_of(step, rank.gather.rank(), unit));
  }
}

TEST(GatherCopies, ReadWhatEveryRankHasWrittenLast) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    RankThreads ranks(kRanks);
    ranks.run([&](int64_t number) {
      Rank rank(ranks, number, {.compute_dtype = dtype, .trainable = true});
      for (int64_t step = 0; step < 3; ++step) {
        write_slowly(rank, step);
        rank.model.weights_changed();
        rank.expect_units_of(step);
        rank.expect_units_of(step); // as in a second micro-batch
        rank.slots.wait_for_gathers(&rank.model);
        ranks.meet(); // as the all-reduce of the norm
      }
      EXPECT_EQ(rank.gather.meetings, 3); // one for each change
    });
  }
}

TEST(GatherCopies, AFrozenModelMeetsOnce) {
  RankThreads ranks(kRanks);
  ranks.run([&](int64_t number) {
    Rank rank(ranks, number, {.compute_dtype = at::kBFloat16});
    write_slowly(rank, 5);
    for (int64_t pass = 0; pass < 3; ++pass) {
      rank.expect_units_of(5);
    }
    EXPECT_EQ(rank.gather.meetings, 1);
    ranks.meet();
  });
}

// Units whose optimizer state is in host memory are updated one by one, and none waits for another one's update; the
// others are updated together.
TEST(GatherCopies, UnitsThatAreUpdatedOneByOneMeetOneByOne) {
  using enum models::StatePlace;
  for (const auto& blocks : std::vector<std::vector<models::StatePlace>>{
           {kHost, kHost, kHost}, {kDevice, kHost, kDevice}, {kDevice, kHost, kHost}}) {
    const std::vector<models::StatePlace> places = models::places_of_units(blocks, /*tied_embeddings=*/false);
    const int64_t on_host = std::count(places.begin(), places.end(), kHost);
    RankThreads ranks(kRanks);
    ranks.run([&](int64_t number) {
      auto slab = device::HostSlab::allocate(1 << 20, at::kCPU, 1, "test");
      ASSERT_TRUE(slab.ok()) << slab.status();
      Rank rank(ranks, number, {.compute_dtype = at::kBFloat16, .trainable = true, .state = {places, *slab}});
      for (int64_t step = 0; step < 2; ++step) {
        write_slowly(rank, step);
        rank.model.weights_changed();
        rank.expect_units_of(step);
        rank.expect_units_of(step);
        ranks.meet();
      }
      const int64_t together = on_host < rank.model.num_units() ? 1 : 0;
      EXPECT_EQ(rank.gather.meetings, 2 * (on_host + together));
    });
  }
}

TEST(GatherCopies, TheComputeCopyStaysBesideTheMasterWeights) {
  RankThreads ranks(kRanks);
  ranks.run([&](int64_t number) {
    Rank rank(ranks, number, {.compute_dtype = at::kBFloat16, .trainable = true});
    for (int64_t unit = 0; unit < rank.model.num_units(); ++unit) {
      const UnitShard& shard = rank.model.unit(unit);
      ASSERT_TRUE(shard.weights.defined());
      EXPECT_EQ(shard.weights.scalar_type(), at::kBFloat16);
      EXPECT_EQ(shard.weights.data_ptr(), shard.peer_weights[static_cast<size_t>(number)].data_ptr());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(shard.weights.data_ptr()) % device::HostSlab::kAlignment, 0);
      EXPECT_EQ(shard.master.scalar_type(), at::kFloat);
    }
    ranks.meet();
  });
}

} // namespace
} // namespace distill::sharding
