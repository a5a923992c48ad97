// Plans of runs whose student is trained in float8, and of runs whose teacher is read from a cache.
#include <gmock/gmock.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/models/layout.h"
#include "trainer/plan/machine_table.h"
#include "trainer/plan/plan.h"

namespace distill::plan {
namespace {

constexpr double kGiB = 1 << 30;

models::ModelConfig small_model() {
  return models::llama_like(
      {.vocab = 32000,
       .hidden = 1024,
       .ffn = 4096,
       .layers = 8,
       .heads = 16,
       .kv_heads = 4,
       .head_dim = 64,
       .max_positions = 8192});
}

config::Config settings(int64_t ranks, int64_t micro_batches = 1) {
  config::Config config;
  config.data.seq_len = 2048;
  config.data.packing = data::PackingMode::kConcat;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 2 * ranks * micro_batches;
  return config;
}

Plan plan_with_rows(const config::Config& config) {
  const models::ModelConfig student = small_model();
  models::ModelConfig teacher = small_model();
  teacher.layers.clear();
  const teacher_cache::RowFormat rows{
      .encoding = teacher_cache::Encoding::kBFloat16, .hidden_size = teacher.hidden_size};
  auto plan = make_plan({config, student, trainer::TeacherSpec::cached({teacher, nullptr}, rows), Target{}, h200()});
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  return *std::move(plan);
}

TEST(Plan, ChangesThatWouldFitAreOfTheSameTeachersRows) {
  config::Config config = settings(1);
  config.parallel.shard = 1; // more ranks would be a change, too
  const int64_t peak = plan_with_rows(config).memory.peak();
  config.memory.budget_gib = 0.8 * static_cast<double>(peak) / kGiB;
  const Plan plan = plan_with_rows(config);
  ASSERT_FALSE(plan.fits());
  ASSERT_FALSE(plan.changes.empty());
  bool compared = false;
  for (const Change& change : plan.changes) {
    EXPECT_LE(change.peak_bytes, 0.8 * static_cast<double>(peak)) << change.text();
    config::Config changed = config;
    if (change.text() == "train.micro_batch_size=1") {
      changed.train.micro_batch_size = 1;
    } else if (change.text() == "memory.optimizer=auto") {
      changed.memory.optimizer = config::Automatic{};
    } else if (change.text() == "memory.activation=auto") {
      changed.memory.activation = config::Automatic{};
    } else {
      continue;
    }
    EXPECT_EQ(plan_with_rows(changed).memory.peak(), change.peak_bytes) << change.text();
    compared = true;
  }
  EXPECT_TRUE(compared) << plan.changes.front().text();
}

Plan float8_plan(
    const config::Config& config, int64_t ranks, bool weight_gradients = false,
    const models::ModelConfig& teacher = small_model()) {
  models::ModelConfig student = teacher;
  student.float8 = *models::Float8Products::all_but({}, models::block_products(student));
  student.float8_weight_gradients = weight_gradients;
  Target target;
  target.world_size = ranks;
  auto plan = make_plan({config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, h200()});
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  return *std::move(plan);
}

TEST(Plan, WeightGradientsInFloat8AreFasterAndChangeTheBackwardPassAlone) {
  const config::Config config = settings(1, 2);
  const int64_t hidden = 4096, ffn = 14336;
  const models::ModelConfig wide = models::llama_like(
      {.vocab = 32000,
       .hidden = hidden,
       .ffn = ffn,
       .layers = 4,
       .heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .max_positions = 8192});
  const Plan without = float8_plan(config, 1, /*weight_gradients=*/false, wide);
  const Plan with = float8_plan(config, 1, /*weight_gradients=*/true, wide);
  EXPECT_GT(with.time.tokens_per_second, 1.02 * without.time.tokens_per_second);
  EXPECT_LT(with.time.tokens_per_second, 1.2 * without.time.tokens_per_second);
  for (size_t phase = 0; phase < without.time.phases.size(); ++phase) {
    if (static_cast<metrics::Phase>(phase) != metrics::Phase::kBackward) {
      EXPECT_EQ(with.time.phases[phase], without.time.phases[phase]) << phase;
    }
  }
  // The widest product is that of gate and up, whose gradient in bf16 exists at the same time: its rounded form, the
  // transpose of that and the transposed input are there in 8 bits.
  const auto backward = [](const Plan& plan) {
    return plan.memory.use.phases[static_cast<size_t>(device::MemoryPhase::kBackward)].bytes;
  };
  const int64_t tokens = 2 * 2048, added = backward(with) - backward(without);
  EXPECT_GT(added, 0);
  EXPECT_LT(added, tokens * (2 * 2 * ffn + hidden) + (1 << 20));
}

TEST(Plan, GathersAreThoseOfStepsWithoutAShadow) {
  for (const int64_t micro_batches : {1, 4}) {
    for (const config::Gather gather : {config::Gather::kNccl, config::Gather::kCopy}) {
      config::Config config = settings(4, micro_batches);
      config.parallel.gather = gather;
      const Plan without = float8_plan(config, 4);
      config.float8.shadow_every = 100;
      const Plan with_shadow = float8_plan(config, 4);
      EXPECT_GT(without.memory.gathers.units, 0);
      EXPECT_EQ(with_shadow.memory.gathers.units, without.memory.gathers.units) << micro_batches;
      EXPECT_EQ(with_shadow.memory.gathers.bytes, without.memory.gathers.bytes) << micro_batches;
      EXPECT_EQ(with_shadow.time.tokens_per_second, without.time.tokens_per_second) << micro_batches;
      // The shadow's weights are in bf16, and its gradients are compared with the others.
      EXPECT_GT(with_shadow.memory.peak(), without.memory.peak()) << micro_batches;
    }
  }
}

} // namespace
} // namespace distill::plan
