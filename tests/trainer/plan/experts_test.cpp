#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/models/layout.h"
#include "trainer/plan/machine_table.h"
#include "trainer/plan/plan.h"

// Plans of models with experts.
namespace distill::plan {
namespace {

using device::Category;

models::ModelConfig qwen3(int64_t ffn, int64_t layers, std::optional<models::ExpertsSpec> experts) {
  models::LayerKind kind;
  kind.mlp.experts = experts;
  return models::llama_like(
      {.vocab = 151936,
       .hidden = 2048,
       .ffn = ffn,
       .layers = layers,
       .heads = 32,
       .kv_heads = 4,
       .head_dim = 128,
       .max_positions = 32768},
      kind);
}
models::ModelConfig with_experts(int64_t layers = 48) { // Qwen3-30B-A3B has 48
  return qwen3(768, layers, models::ExpertsSpec{.count = 128, .per_token = 8, .normalise = true});
}
models::ModelConfig as_one_mlp(int64_t layers = 48) { // of as many neurons as a token visits
  return qwen3(8 * 768, layers, {});
}

Plan plan_of(int64_t ranks, const models::ModelConfig& student, const models::ModelConfig& teacher) {
  config::Config config;
  config.data.seq_len = 4096;
  config.train.micro_batch_size = 2;
  config.train.global_batch_size = 2 * ranks;
  config.parallel.gather = config::Gather::kNccl;
  Target target;
  target.world_size = ranks;
  const auto plan = make_plan({config, student, trainer::TeacherSpec::running({teacher, nullptr}), target, h200()});
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  return *plan;
}

int64_t highest(const Plan& plan, device::MemoryPhase phase, Category category) {
  return plan.memory.use.phases[static_cast<size_t>(phase)].highest[static_cast<size_t>(category)];
}

TEST(ExpertsPlan, HoldsAllExpertsAndTakesTheTimeOfThoseThatATokenVisits) {
  const Plan experts = plan_of(1, as_one_mlp(4), with_experts()), dense = plan_of(1, as_one_mlp(4), as_one_mlp());
  const auto bytes = static_cast<double>(2 * models::parameter_count(models::unit_layouts(with_experts())));
  EXPECT_NEAR(bytes, 61.06e9, 0.01e9); // 30.5 billion parameters
  EXPECT_NEAR(highest(experts, device::MemoryPhase::kTeacher, Category::kTeacher), bytes, 1e-3 * bytes);
  const auto teacher = [](const Plan& plan) { return plan.time.phases[static_cast<size_t>(metrics::Phase::kTeacher)]; };
  EXPECT_GT(teacher(experts), teacher(dense));
  EXPECT_LT(teacher(experts), 2 * teacher(dense));
}

TEST(ExpertsPlan, GathersEachBlockIntoOneSlot) {
  const Plan plan = plan_of(2, as_one_mlp(4), with_experts(6));
  const int64_t block = 2 * models::block_layout(with_experts(6), 0).numel;
  const int64_t table = int64_t{2} * 151936 * 2048;
  const int64_t slots = highest(plan, device::MemoryPhase::kTeacher, Category::kSlots);
  EXPECT_GE(slots, 2 * block); // the one that runs, and the next
  EXPECT_LT(slots, 2 * block + 2 * table + (1 << 20)); // embedding, and the head with its norm
}

// What a layer with experts saves is in docs/models.md.
TEST(ExpertsPlan, AStudentWithExpertsKeepsWhatItsLayersSave) {
  const auto saved = [](const models::ModelConfig& student) {
    const Plan plan = plan_of(1, student, as_one_mlp(2));
    return static_cast<double>(highest(plan, device::MemoryPhase::kForward, Category::kActivations)) / 8192 / 1024;
  };
  const double layer = saved(with_experts(3)) - saved(with_experts(2));
  const double dense = saved(as_one_mlp(3)) - saved(as_one_mlp(2));
  EXPECT_NEAR(dense - 24, layer - 24.6, 0.1); // KiB for each token: gate and up, and for experts the routing
}

// Of rank 16 on gate, up and down of each expert.
models::ModelConfig with_adapters(models::ModelConfig model) {
  model.adapter.emplace();
  for (int64_t block = 0; block < model.num_layers(); ++block) {
    for (const models::ParamLayout& param : models::block_layout(model, block).params) {
      if (param.name == "gate_up" || param.name == "down") {
        const std::string name = absl::StrCat("model.layers.", block, ".mlp.experts.", param.name);
        model.adapter->modules.push_back({block, param.name, name, 0, param.group_rows(), 16, 1, name});
      }
    }
  }
  return model;
}

// Master, moments and gradients are those of all experts' adapters; a token is multiplied by the adapters of 8 of 128.
TEST(ExpertsPlan, AdaptersHaveTheMemoryOfAllExpertsAndTheTimeOfThoseThatATokenVisits) {
  const models::ModelConfig student = with_adapters(with_experts(4)), dense = with_adapters(as_one_mlp(4));
  const auto parameters = static_cast<double>(models::parameter_count(models::trained_layouts(student)));
  EXPECT_DOUBLE_EQ(parameters, 4.0 * 128 * 16 * (2048 + 2 * 768 + 768 + 2048));
  const Plan experts = plan_of(1, student, as_one_mlp(2)), one = plan_of(1, dense, as_one_mlp(2));
  const auto bytes = [&](Category category) {
    return static_cast<double>(highest(experts, device::MemoryPhase::kBackward, category));
  };
  EXPECT_NEAR(bytes(Category::kMaster), 4 * parameters, 0.01 * 4 * parameters);
  EXPECT_NEAR(bytes(Category::kMoments), 8 * parameters, 0.01 * 8 * parameters);
  EXPECT_LT(bytes(Category::kGradients), 1.01 * 4 * parameters);
  const auto student_time = [](const Plan& plan) {
    return plan.time.phases[static_cast<size_t>(metrics::Phase::kForward)] +
        plan.time.phases[static_cast<size_t>(metrics::Phase::kBackward)];
  };
  EXPECT_GT(student_time(experts), student_time(one));
  EXPECT_LT(student_time(experts), 2 * student_time(one));
  // Rank 16 costs a token as many operations as its 8 experts have adapters.
  EXPECT_EQ(models::adapter_numel(student, 0), 8 * 16 * (2048 + 2 * 768 + 768 + 2048));
}

TEST(ExpertsPlan, RunsAMixOfLayers) {
  models::LayerKind sparse = with_experts().kinds[0], dense = as_one_mlp().kinds[0];
  models::ModelConfig student = with_experts(4);
  student.set_layers({dense, sparse, dense, sparse});
  const Plan plan = plan_of(2, student, as_one_mlp(2));
  EXPECT_GT(plan.time.tokens_per_second, 0);
  EXPECT_GT(highest(plan, device::MemoryPhase::kBackward, Category::kGradients), 0);
}

} // namespace
} // namespace distill::plan
