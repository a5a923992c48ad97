#include "trainer/setup/memory_setup.h"

#include <gmock/gmock.h>

#include <limits>

#include "tests/trainer/step/tiny_step.h"
#include "trainer/setup/prepared_run.h"
#include "trainer/sharding/simulated_mesh.h"

namespace distill::trainer {
namespace {

// Two ranks, of which the other one has decided as it is told.
class OtherRank : public sharding::Communicator {
 public:
  explicit OtherRank(std::vector<int64_t> decision) : decision_(std::move(decision)) {}

  int64_t rank() const override {
    return 0;
  }
  int64_t size() const override {
    return 2;
  }
  void all_gather(at::Tensor full, const at::Tensor& shard) override {
    full.copy_(at::cat({shard, at::tensor(decision_, at::kLong)}));
  }
  void reduce_scatter(at::Tensor, const at::Tensor&) override {}
  void all_reduce(at::Tensor) override {}
  void all_reduce_max(at::Tensor) override {}
  void broadcast(at::Tensor, int64_t) override {}
  void shutdown() override {}

 private:
  std::vector<int64_t> decision_;
};

class AgreeOnGathers : public testing::Test {
 protected:
  config::Config config_ = tiny_config(2);
  const Environment environment_;
  Inputs inputs_;
  const launch::RankInfo ranks_{.world_size = 2, .local_world_size = 2};
  std::unique_ptr<sharding::Mesh> mesh_ = sharding::simulated_mesh(2, 1, /*shared_memory=*/true);

  AgreeOnGathers() {
    config_.loss.soft_weight = 0; // no teacher
    config_.parallel.gather = config::Gather::kAuto;
    config_.parallel.slots = config::kAutomatic;
    inputs_.student.config = tiny_model(5);
    inputs_.teachers.emplace_back();
  }
  // What another rank says of its plan: whether it copies, its slots, the number of blocks whose optimizer state it has
  // on the host (none of them updated there), its tiles (0: none), and that it recomputes what blocks recompute here.
  static std::vector<int64_t> said(bool copies, int64_t slots, int64_t on_host, int64_t tile, const plan::Plan& own) {
    const int64_t no_tiles = std::numeric_limits<int64_t>::max();
    const auto recompute = static_cast<int64_t>(own.shape.config.memory.recompute);
    return {copies ? 1 : 0, slots, -on_host, 0, tile > 0 ? tile : no_tiles, recompute};
  }
  // This rank's plan, and the one after the other rank has said its decision.
  std::pair<plan::Plan, plan::Plan> plans(bool copies, int64_t slots, int64_t on_host, int64_t tile = 0) {
    const auto own = plan_memory(config_, environment_, inputs_, ranks_, *mesh_);
    TORCH_CHECK(own.ok(), std::string(own.status().message()));
    plan::Plan agreed = *own;
    mesh_->host = std::make_unique<OtherRank>(said(copies, slots, on_host, tile, *own));
    const absl::Status status = agree_on_gathers(config_, environment_, inputs_, ranks_, *mesh_, agreed);
    TORCH_CHECK(status.ok(), std::string(status.message()));
    return {*own, agreed};
  }
};

TEST_F(AgreeOnGathers, NothingChangesWhereAllDecideAlike) {
  const auto [own, agreed] = plans(true, 5, 0);
  EXPECT_TRUE(own.shape.copies());
  EXPECT_EQ(own.shape.config.parallel.slots, 5); // all blocks
  EXPECT_TRUE(agreed.shape.copies());
  EXPECT_EQ(agreed.shape.config.parallel.slots, 5);
  EXPECT_EQ(agreed.memory.peak(), own.memory.peak());
}

TEST_F(AgreeOnGathers, TheRankWithTheLeastRoomDecides) {
  const auto [own, agreed] = plans(false, 3, 0);
  EXPECT_TRUE(own.shape.copies());
  EXPECT_FALSE(agreed.shape.copies());
  EXPECT_EQ(agreed.shape.config.parallel.slots, 3);
  EXPECT_LT(agreed.memory.peak(), own.memory.peak());
}

TEST_F(AgreeOnGathers, TheRankWithTheMostStateOnTheHostDecides) {
  config_.memory.optimizer = config::Automatic{};
  const auto [own, agreed] = plans(true, 5, 2);
  EXPECT_FALSE(own.shape.state_on_host());
  EXPECT_EQ(models::policies_text(agreed.shape.places), "device*2,host*2,device");
  EXPECT_GT(agreed.memory.host_optimizer, 0);
}

TEST_F(AgreeOnGathers, TheRankWithTheSmallestTilesDecides) {
  const auto [own, agreed] = plans(true, 5, 0, 4);
  EXPECT_EQ(own.shape.config.memory.tile_tokens, 0);
  EXPECT_EQ(agreed.shape.config.memory.tile_tokens, 4);
}

TEST_F(AgreeOnGathers, WhatIsReportedIsThePlanThatTheRanksAgreedOn) {
  PreparedRun prepared;
  prepared.plan = *plan_memory(config_, environment_, inputs_, ranks_, *mesh_);
  prepared.inputs = inputs_;
  const std::vector<std::string> own = prepared.plan.lines();
  mesh_->host = std::make_unique<OtherRank>(said(false, 3, 0, 0, prepared.plan));
  const absl::Status status = settle_plan(config_, environment_, ranks_, *mesh_, prepared);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_FALSE(prepared.plan.shape.copies());
  EXPECT_EQ(prepared.report, prepared.plan.lines());
  EXPECT_NE(prepared.report, own);
}

TEST_F(AgreeOnGathers, ARankThatCannotDoMoreLeavesItsPlanAlone) {
  config_.parallel.slots = 2;
  const auto [own, agreed] = plans(true, 5, 0);
  EXPECT_TRUE(agreed.shape.copies());
  EXPECT_EQ(agreed.shape.config.parallel.slots, 2);
  EXPECT_EQ(agreed.memory.peak(), own.memory.peak());
}

} // namespace
} // namespace distill::trainer
