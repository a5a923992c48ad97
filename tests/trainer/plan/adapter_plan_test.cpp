#include <gtest/gtest.h>

#include "tests/trainer/plan/plan_requests.h"
#include "trainer/models/layout.h"

// Plans of students with adapters.
namespace distill::plan {
namespace {

using device::Category;

models::ModelConfig with_lora(models::ModelConfig model, int64_t rank, std::vector<std::string> whole = {}) {
  models::AdapterSpec adapter{.whole = std::move(whole)};
  for (int64_t block = 0; block < model.num_layers(); ++block) {
    for (const models::ParamLayout& param : models::block_layout(model, block).params) {
      for (const models::ParamPart& part : param.parts) {
        if (param.may_be_float8) {
          adapter.modules.push_back({block, param.name, part.hf_name, part.first_row, part.rows, rank, /*scale=*/2});
        }
      }
    }
  }
  model.adapter = std::move(adapter);
  return model;
}

config::Config lora_settings(int64_t ranks, bool one_folder) {
  config::Config config = settings(ranks, "recompute");
  config.student.path = "base";
  config.teacher.path = one_folder ? "base" : "other";
  config.lora.rank = 16;
  return config;
}

Machine h100() {
  return *machine_named("h100-sxm");
}

constexpr double kWeights = 8.03e9 * 2; // bytes of the base in bf16

TEST(AdapterPlan, ABaseThatTeachesIsInMemoryOnceAndFitsIntoAn80GigabyteGpu) {
  const models::ModelConfig student = with_lora(llama_8b(), 16);
  const Plan one = plan_of(lora_settings(1, true), 1, student, llama_8b(), h100());
  const Plan two = plan_of(lora_settings(1, false), 1, student, llama_8b(), h100());
  EXPECT_TRUE(one.fits()) << one.text();
  EXPECT_NEAR(static_cast<double>(two.memory.peak() - one.memory.peak()), kWeights, 0.01 * kWeights);
  EXPECT_NE(one.text().find("one copy of the frozen weights"), std::string::npos);
  EXPECT_EQ(two.text().find("one copy"), std::string::npos);
  // 16 x (inputs + outputs) of each module: 41.9 M parameters.
  const auto adapters = static_cast<double>(models::parameter_count(models::trained_layouts(student)));
  EXPECT_NEAR(adapters, 41.9e6, 0.1e6);
  EXPECT_NEAR(static_cast<double>(highest(one, Category::kMaster)), 4 * adapters, 0.05 * 4 * adapters);
  EXPECT_NEAR(static_cast<double>(highest(one, Category::kMoments)), 8 * adapters, 0.05 * 8 * adapters);
  EXPECT_LT(static_cast<double>(highest(one, Category::kGradients)), 1.05 * 4 * adapters);
}

TEST(AdapterPlan, FrozenWeightsTakeNoTimeForTheirGradients) {
  config::Config config = lora_settings(1, true);
  const Plan adapters = plan_of(config, 1, with_lora(llama_8b(), 16), llama_8b());
  const Plan head = plan_of(config, 1, with_lora(llama_8b(), 16, {"lm_head.weight"}), llama_8b());
  config.lora.rank = 0;
  const Plan all = plan_of(config, 1, llama_8b(), llama_8b());
  const auto phase = [](const Plan& plan, metrics::Phase which) {
    return plan.time.phases[static_cast<size_t>(which)];
  };
  using metrics::Phase;
  EXPECT_LT(phase(adapters, Phase::kBackward), 0.8 * phase(all, Phase::kBackward));
  EXPECT_GT(phase(adapters, Phase::kBackward), 0.6 * phase(all, Phase::kBackward));
  EXPECT_LT(phase(adapters, Phase::kHead), 0.9 * phase(all, Phase::kHead));
  EXPECT_DOUBLE_EQ(phase(head, Phase::kHead), phase(all, Phase::kHead));
  EXPECT_LT(phase(adapters, Phase::kOptimizer), 0.05 * phase(all, Phase::kOptimizer));
  // Nor memory: an fp32 gradient of the lm_head is 2.1 GB.
  const double table = 128256.0 * 4096 * 4;
  EXPECT_GT(static_cast<double>(head.memory.peak() - adapters.memory.peak()), 3 * table); // master and moments, too
}

TEST(AdapterPlan, RanksGatherTheBaseOnceWhereItIsStillHeld) {
  config::Config config = lora_settings(2, true);
  const models::ModelConfig student = with_lora(llama_8b(), 16);
  const Plan one = plan_of(config, 2, student, llama_8b(), h100());
  config.parallel.slots = 32;
  const Plan all_held = plan_of(config, 2, student, llama_8b(), h100());
  const Plan apart = plan_of(lora_settings(2, false), 2, student, llama_8b(), h100());
  EXPECT_LT(all_held.memory.gathers.total_bytes(), 0.5 * one.memory.gathers.total_bytes());
  // The loss head holds the gathered lm_heads of both models, which are one.
  const double lm_head = 128256.0 * 4096 * 2;
  EXPECT_NEAR(static_cast<double>(apart.memory.peak() - one.memory.peak()), kWeights / 2 + lm_head, 0.02 * kWeights);
}

} // namespace
} // namespace distill::plan
