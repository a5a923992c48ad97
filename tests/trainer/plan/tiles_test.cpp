#include <gmock/gmock.h>

#include "tests/trainer/plan/plan_requests.h"

// Plans of long sequences, whose MLPs are computed in tiles.
namespace distill::plan {
namespace {

using config::kAutomatic;
using device::Category;

config::Config one_sequence(int64_t tokens, const std::string& activation = "recompute") {
  config::Config config = settings(1, activation);
  config.train.micro_batch_size = config.train.global_batch_size = 1;
  config.data.seq_len = tokens;
  config.memory.tile_tokens = 0;
  return config;
}

Plan plan_of_1b(const config::Config& config) {
  return plan_of(config, 1, llama_1b(), llama_1b());
}

int64_t highest_in(const Plan& plan, device::MemoryPhase phase, Category category) {
  return plan.memory.use.phases[static_cast<size_t>(phase)].highest[static_cast<size_t>(category)];
}

// Llama-1B: hidden 2048, ffn 8192. Gate, up and the gated product of a token take 48 KiB, and exist for a tile.
TEST(TiledPlan, TilesBoundTheWorkspaceOfBothPasses) {
  config::Config config = one_sequence(65536);
  const Plan whole = plan_of_1b(config);
  config.memory.tile_tokens = 8192;
  const Plan tiled = plan_of_1b(config);
  const double gate_up = 32.0 * 1024 * (65536 - 8192);
  for (const device::MemoryPhase phase : {device::MemoryPhase::kTeacher, device::MemoryPhase::kForward}) {
    EXPECT_GT(
        static_cast<double>(
            highest_in(whole, phase, Category::kWorkspace) - highest_in(tiled, phase, Category::kWorkspace)),
        0.6 * gate_up)
        << device::phase_name(phase);
  }
  EXPECT_GT(
      highest_in(whole, device::MemoryPhase::kBackward, Category::kWorkspace),
      highest_in(tiled, device::MemoryPhase::kBackward, Category::kWorkspace) + 1.0 * kGiB);
  EXPECT_LT(tiled.memory.peak(), whole.memory.peak());
}

TEST(TiledPlan, BlocksSaveNothingOfTheirMlps) {
  config::Config config = one_sequence(65536, "keep");
  const Plan whole = plan_of_1b(config);
  config.memory.tile_tokens = 16384;
  const Plan tiled = plan_of_1b(config);
  const double gate_up = 16 * 32.0 * 1024 * 65536;
  EXPECT_NEAR(
      static_cast<double>(highest(whole, Category::kActivations) - highest(tiled, Category::kActivations)), gate_up,
      0.01 * gate_up);
}

// The MLP's first product runs again under every policy, and each tile adds to the gradients of the MLP's weights.
TEST(TiledPlan, TilesCostARecomputationAndSumsOfGradients) {
  const auto backward = [](const std::string& activation, int64_t tile) {
    config::Config config = one_sequence(65536, activation);
    config.memory.tile_tokens = tile;
    return plan_of_1b(config).time.phases[static_cast<size_t>(metrics::Phase::kBackward)];
  };
  const double product = 16 * 2.0 * 65536 * 2048 * 2 * 8192 / h200().matmul_flops;
  EXPECT_NEAR(backward("keep", 32768) - backward("keep", 0), product, 0.4 * product);
  EXPECT_NEAR(backward("recompute", 32768), backward("recompute", 0), 0.3 * product);
  const double weights = 16 * 3.0 * 2048 * 8192; // of all blocks' MLPs; fp32 gradients are read and written
  const double sums = (8 - 2) * weights * 8 / h200().memory_bytes;
  const double cost = backward("recompute", 8192) - backward("recompute", 32768);
  EXPECT_GT(cost, sums);
  EXPECT_LT(cost, 3 * sums);
  EXPECT_EQ(backward("recompute", 65536), backward("recompute", 0)); // one tile
}

TEST(TiledPlan, AutomaticTilesAreTakenWhereThePlanDoesNotFitWithout) {
  config::Config config = one_sequence(65536, "offload_input");
  config.memory.optimizer = models::StatePlace::kHost;
  config.parallel.shard = 1; // more ranks are no way out
  const Plan whole = plan_of_1b(config);
  config.memory.tile_tokens = 16384;
  const Plan quarter = plan_of_1b(config);
  config.memory.tile_tokens = kAutomatic;
  const Plan roomy = plan_of_1b(config);
  EXPECT_EQ(roomy.shape.config.memory.tile_tokens, 0);
  EXPECT_TRUE(roomy.automatic_tiles);
  EXPECT_EQ(roomy.memory.peak(), whole.memory.peak());
  config.memory.budget_gib = static_cast<double>(quarter.memory.peak()) / kGiB + 0.01;
  const Plan tight = plan_of_1b(config);
  EXPECT_TRUE(tight.fits());
  EXPECT_EQ(tight.shape.config.memory.tile_tokens, 16384);
  EXPECT_EQ(tight.memory.peak(), quarter.memory.peak());
  EXPECT_THAT(tight.text(), testing::HasSubstr("4 tiles of 16384 tokens"));
  EXPECT_THAT(tight.json(), testing::HasSubstr("\"tile_tokens\": 16384"));
  // Without the word auto the plan does not fit, and names the key.
  config.memory.tile_tokens = 0;
  const Plan refused = plan_of_1b(config);
  EXPECT_FALSE(refused.fits());
  EXPECT_TRUE(std::any_of(refused.changes.begin(), refused.changes.end(), [](const Change& change) {
    return change.text() == "memory.tile_tokens=auto";
  })) << refused.text();
}

TEST(TiledPlan, AutomaticTilesAreTakenWhereTheyAreFaster) {
  config::Config config = one_sequence(65536, "auto");
  config.memory.recompute = config::Recompute::kAll;
  const Plan roomy = plan_of_1b(config);
  config.memory.budget_gib = 0.6 * static_cast<double>(roomy.memory.peak()) / kGiB;
  const Plan whole = plan_of_1b(config);
  config.memory.tile_tokens = kAutomatic;
  const Plan chosen = plan_of_1b(config);
  ASSERT_TRUE(whole.fits());
  ASSERT_TRUE(chosen.fits());
  EXPECT_LE(chosen.time.total(), whole.time.total());
  for (const int64_t tile : {4096, 16384}) {
    config.memory.tile_tokens = tile;
    EXPECT_LE(chosen.time.total(), plan_of_1b(config).time.total()) << tile;
  }
}

// Attention's forward pass over 65536 tokens takes longer than all products of a block's.
TEST(TiledPlan, AttentionIsSavedWhereThatIsFaster) {
  config::Config config = one_sequence(65536);
  config.memory.recompute = config::Recompute::kAll;
  const Plan all = plan_of_1b(config);
  config.memory.recompute = config::Recompute::kAuto;
  EXPECT_EQ(plan_of_1b(config).memory.peak(), all.memory.peak()); // memory.activation is not auto
  config.memory.recompute = config::Recompute::kAllButAttention;
  const Plan saves = plan_of_1b(config);
  const double outputs = 16.0 * 65536 * (2 * 2048 + 4 * 32); // with an fp32 number for each of 32 heads
  EXPECT_NEAR(
      static_cast<double>(highest(saves, Category::kActivations) - highest(all, Category::kActivations)), outputs,
      0.01 * outputs);
  const auto backward = [](const Plan& plan) {
    return plan.time.phases[static_cast<size_t>(metrics::Phase::kBackward)];
  };
  const double attention = 16 * 4.0 * 65536 * 2048 * 32768 / (0.72 * h200().attention_forward_flops);
  EXPECT_NEAR(backward(all) - backward(saves), attention, 0.01 * attention);

  config = one_sequence(65536, "auto");
  config.memory.recompute = config::Recompute::kAuto;
  config.memory.budget_gib = static_cast<double>(saves.memory.peak()) / kGiB + 0.1;
  const Plan chosen = plan_of_1b(config);
  EXPECT_TRUE(chosen.fits());
  EXPECT_EQ(chosen.shape.config.memory.recompute, config::Recompute::kAllButAttention);
  EXPECT_LE(chosen.time.total(), saves.time.total());
  EXPECT_THAT(chosen.text(), testing::HasSubstr("save attention's output"));
}

// Micro-batches of up to 8192 tokens are computed as before.
TEST(TiledPlan, ShortMicroBatchesAreNotDivided) {
  config::Config config = one_sequence(8192);
  config.memory.tile_tokens = kAutomatic;
  config.memory.budget_gib = 0.5;
  EXPECT_EQ(plan_of_1b(config).shape.config.memory.tile_tokens, 0);
}

} // namespace
} // namespace distill::plan
