#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/sharding/one_of_many.h"
#include "trainer/sharding/gradient_slots.h"
#include "trainer/sharding/weight_slots.h"

namespace distill::sharding {
namespace {

constexpr int64_t kRanks = 3;
constexpr int64_t kShard = 64;
const int model_a = 0, model_b = 0; // their addresses tell models apart

UnitSource block(int64_t unit, const at::Tensor& shard, const void* model = &model_a) {
  return {{model, unit}, SlotSize::kBlock, shard, shard.scalar_type()};
}

UnitSource large(int64_t unit, const at::Tensor& shard, const void* model = &model_a) {
  return {{model, unit}, SlotSize::kLarge, shard, shard.scalar_type()};
}

class WeightSlotsTest : public testing::Test {
 protected:
  OneOfMany ranks_{1, kRanks};
  SlotChecks checks_{at::kCPU};
  SlotPlan plan_{.block_bytes = kRanks * kShard * 4, .block_slots = 2, .large_slots = 2};
  WeightSlots slots_{at::kCPU, ranks_, plan_, &checks_};

  void SetUp() override {
    checks_.name_units(&model_a, "student", {"embedding", "block 0", "block 1", "block 2", "head"});
    checks_.name_units(&model_b, "teacher", {"embedding", "block 0"});
  }
  void use(const UnitSource& unit) {
    slots_.acquire(unit);
    slots_.release(unit.key);
  }
  std::string failed_unit() const {
    const auto unit = checks_.failed_unit().item<int64_t>();
    return unit == 0 ? "" : checks_.describe(unit);
  }
};

TEST_F(WeightSlotsTest, MasterWeightsAreRoundedOnTheWayIntoTheSlot) {
  const at::Tensor master = at::randn({kShard});
  UnitSource unit = block(1, master);
  unit.dtype = at::kBFloat16;
  const at::Tensor whole = slots_.acquire(unit);
  ASSERT_EQ(whole.scalar_type(), at::kBFloat16);
  const at::Tensor rounded = master.to(at::kBFloat16);
  EXPECT_TRUE(at::equal(whole, at::cat({rounded - 1, rounded, rounded + 1})));
}

TEST_F(WeightSlotsTest, AUnitGatheredAheadKeepsItsSlotUntilItWasUsed) {
  const at::Tensor shard = at::ones({kShard});
  slots_.acquire(block(1, shard));
  slots_.prefetch(block(2, shard));
  slots_.prefetch(block(3, shard)); // no slot is left for it
  EXPECT_EQ(ranks_.gathers, 2);
  slots_.release(block(1, shard).key);
  slots_.prefetch(block(3, shard));
  use(block(2, shard));
  use(block(3, shard));
  EXPECT_EQ(ranks_.gathers, 3);
}

TEST_F(WeightSlotsTest, AUnitIsGatheredOnceUntilItsWeightsChange) {
  at::Tensor shard = at::ones({kShard});
  const at::Tensor other = at::ones({kShard});
  use(block(1, shard));
  use(block(1, other, &model_b));
  use(block(1, shard));
  EXPECT_EQ(ranks_.gathers, 2);
  shard.fill_(5);
  slots_.invalidate(&model_a);
  EXPECT_EQ(slots_.acquire(block(1, shard))[kShard].item<float>(), 5);
  use(block(1, other, &model_b));
  EXPECT_EQ(ranks_.gathers, 3);
  EXPECT_EQ(failed_unit(), "");
}

TEST_F(WeightSlotsTest, ARetiredLargeUnitGivesItsMemoryBack) {
  const at::Tensor shard = at::ones({kShard});
  at::Tensor whole = slots_.acquire(large(0, shard));
  slots_.release(large(0, shard).key);
  EXPECT_GT(whole.storage().use_count(), 1);
  slots_.retire(large(0, shard).key);
  EXPECT_EQ(whole.storage().use_count(), 1);
  slots_.prefetch(large(4, shard));
  slots_.retire(large(4, shard).key); // gathered, never used
  slots_.retire(large(4, shard).key); // not there
  use(large(4, shard));
  EXPECT_EQ(ranks_.gathers, 3);
}

TEST_F(WeightSlotsTest, UseOutOfOrderIsAnError) {
  const at::Tensor shard = at::ones({kShard});
  EXPECT_THROW(slots_.release(block(1, shard).key), c10::Error);
  slots_.acquire(block(1, shard));
  EXPECT_THROW(slots_.invalidate(&model_a), c10::Error);
  slots_.acquire(block(2, shard));
  EXPECT_THROW(slots_.acquire(block(3, shard)), c10::Error); // both slots are in use
}

TEST_F(WeightSlotsTest, AUnitStaysUntilEachOfItsUsersHasReleasedIt) {
  const at::Tensor shard = at::ones({kShard});
  const UnitSource head = large(0, shard);
  const at::Tensor first = slots_.acquire(head), second = slots_.acquire(head);
  EXPECT_TRUE(first.is_alias_of(second));
  EXPECT_EQ(slots_.gathered().units, 1);
  slots_.retire(head.key); // of one of the two
  slots_.release(head.key);
  EXPECT_THROW(slots_.invalidate(&model_a), c10::Error);
  slots_.release(head.key);
  EXPECT_THROW(slots_.release(head.key), c10::Error);
  slots_.acquire(head);
  EXPECT_EQ(slots_.gathered().units, 1);
  slots_.release(head.key);
  slots_.retire(head.key);
  slots_.acquire(head);
  EXPECT_EQ(slots_.gathered().units, 2);
}

TEST_F(WeightSlotsTest, AWriteIntoASlotBetweenForwardAndBackwardIsFound) {
  const at::Tensor shard = at::ones({kShard});
  const at::Tensor whole = slots_.acquire(block(2, shard));
  slots_.release(block(2, shard).key);
  use(block(2, shard));
  EXPECT_EQ(failed_unit(), "");
  whole[kRanks * kShard - 1] = 7;
  use(block(1, shard));
  EXPECT_EQ(failed_unit(), "");
  use(block(2, shard));
  EXPECT_EQ(failed_unit(), "student block 1");
}

TEST_F(WeightSlotsTest, AWriteIntoASlotInUseIsFound) {
  const at::Tensor shard = at::ones({kShard});
  at::Tensor whole = slots_.acquire(block(1, shard, &model_b));
  // These are the same numbers in another order.
  whole.copy_(at::cat({whole.narrow(0, kShard, 2 * kShard), whole.narrow(0, 0, kShard)}));
  slots_.release(block(1, shard, &model_b).key);
  EXPECT_EQ(failed_unit(), "teacher block 0");
}

TEST_F(WeightSlotsTest, WaitsForCommunicationAreObservedInPairs) {
  std::vector<bool> calls;
  slots_.observe_waits([&](bool waits) { calls.push_back(waits); });
  const at::Tensor shard = at::ones({kShard});
  slots_.prefetch(block(1, shard));
  use(block(1, shard));
  EXPECT_THAT(calls, testing::ElementsAre(true, false, true, false));
}

TEST(SlotEvents, KnowTheOrderOfWritesAndReads) {
  SlotEvents events(at::kCPU);
  EXPECT_THROW(events.read_begins(), c10::Error); // never written
  events.write_begins();
  EXPECT_THROW(events.read_begins(), c10::Error); // not yet gathered
  events.write_ends();
  events.read_begins();
  EXPECT_THROW(events.write_begins(), c10::Error); // in use
  events.read_ends();
  events.read_begins(); // the backward pass
  events.read_ends();
  EXPECT_THROW(events.read_ends(), c10::Error);
  events.write_begins();
}

class GradientSlotsTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  OneOfMany ranks_{1, kRanks}, replicas_{0, 2};
  GradientSlots slots_{at::kCPU, ranks_, &replicas_, GetParam()};
  at::Tensor shard_ = at::full({kShard}, 100.0F);
};
INSTANTIATE_TEST_SUITE_P(ReduceDtype, GradientSlotsTest, testing::Values(at::kFloat, at::kBFloat16));

TEST_P(GradientSlotsTest, MicroBatchesAddUpAndReplicasOnlyAtTheEnd) {
  for (int64_t batch = 0; batch < 2; ++batch) {
    const auto whole = slots_.acquire({&model_a, 1}, SlotSize::kBlock, kRanks * kShard);
    EXPECT_TRUE(whole.is_new);
    whole.flat.fill_(2.0);
    slots_.reduce({&model_a, 1}, shard_, {.accumulate = batch > 0, .last = batch == 1});
    EXPECT_EQ(replicas_.sums, batch);
  }
  slots_.finish();
  EXPECT_TRUE(at::equal(shard_, at::full({kShard}, 2.0 * kRanks * 2 * 2)));
}

TEST_P(GradientSlotsTest, AShardInBFloat16HasTheSumOverMicroBatchesAndReplicas) {
  at::Tensor shard = at::full({kShard}, 100.0F, at::kBFloat16);
  for (int64_t batch = 0; batch < 2; ++batch) {
    slots_.acquire({&model_a, 1}, SlotSize::kBlock, kRanks * kShard).flat.fill_(2.0);
    slots_.reduce({&model_a, 1}, shard, {.accumulate = batch > 0, .last = batch == 1});
    EXPECT_EQ(replicas_.sums, batch);
  }
  slots_.finish();
  EXPECT_TRUE(at::equal(shard, at::full({kShard}, 2.0 * kRanks * 2 * 2, at::kBFloat16))) << "exact in bf16";
}

TEST_P(GradientSlotsTest, AnOpenGradientIsKeptAndItsMemoryGoesWhenItIsReduced) {
  const UnitKey key{&model_a, 1};
  at::Tensor whole = slots_.acquire(key, SlotSize::kBlock, kRanks * kShard).flat;
  whole.fill_(1.0);
  for (int64_t unit = 2; unit < 6; ++unit) { // all units of a model are open at once when full gradients are saved
    slots_.acquire({&model_a, unit}, SlotSize::kBlock, kRanks * kShard);
  }
  const auto again = slots_.acquire(key, SlotSize::kBlock, kRanks * kShard);
  EXPECT_FALSE(again.is_new);
  EXPECT_TRUE(again.flat.is_same(whole));
  slots_.reduce(key, shard_, {});
  EXPECT_THROW(slots_.reduce(key, shard_, {}), c10::Error);
  slots_.finish();
  EXPECT_TRUE(whole.use_count() == 2 && whole.storage().use_count() == 1); // ours alone
  EXPECT_EQ(ranks_.reductions, 1);
  EXPECT_TRUE(at::equal(shard_, at::full({kShard}, 1.0 * kRanks * 2)));
}

// The lm_head's gradient is reduced first: it goes as soon as a block's later reduction has been waited for.
TEST_P(GradientSlotsTest, WhatWasReducedBeforeABlockThatIsWaitedForGivesItsMemoryBack) {
  const UnitKey head{&model_a, 9};
  at::Tensor large = slots_.acquire(head, SlotSize::kLarge, kRanks * kShard).flat;
  slots_.reduce(head, shard_, {});
  std::vector<at::Tensor> blocks;
  const auto alive = [](const at::Tensor& tensor) { return tensor.use_count() > 1; };
  for (int64_t unit = 0; unit < 3; ++unit) {
    EXPECT_TRUE(alive(large)) << unit;
    blocks.push_back(slots_.acquire({&model_a, unit}, SlotSize::kBlock, kRanks * kShard).flat);
    slots_.reduce({&model_a, unit}, shard_, {});
  }
  EXPECT_FALSE(alive(large));
  EXPECT_FALSE(alive(blocks[0]));
  EXPECT_TRUE(alive(blocks[2]));
  // A large unit leaves one block's reduction in flight, as a block does.
  slots_.acquire({&model_a, 8}, SlotSize::kLarge, kRanks * kShard);
  EXPECT_FALSE(alive(blocks[1]));
  EXPECT_TRUE(alive(blocks[2]));
  slots_.finish();
  EXPECT_FALSE(alive(blocks[2]));
}

} // namespace
} // namespace distill::sharding
