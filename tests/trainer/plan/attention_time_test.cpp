#include "trainer/plan/attention_time.h"

#include <gmock/gmock.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/plan/machine_table.h"
#include "trainer/plan/plan.h"

namespace distill::plan {
namespace {

using testing::HasSubstr;

// Two layers with heads of 128, and one with half as many heads of `head_dim`.
models::ModelConfig model(int64_t head_dim, double softcap = 0) {
  models::ModelConfig config = models::llama_like(
      {.vocab = 32000,
       .hidden = 2048,
       .ffn = 4096,
       .layers = 3,
       .heads = 16,
       .kv_heads = 4,
       .head_dim = 128,
       .max_positions = 8192});
  models::LayerKind wide = config.kinds[0];
  wide.attention.head_dim = head_dim;
  wide.attention.softcap = softcap;
  config.set_layers({config.kinds[0], wide, config.kinds[0]});
  return config;
}

TEST(AttentionTime, ScoresThatPassThroughMemoryTakeTime) {
  const models::AttentionSpec fused{.heads = 32, .kv_heads = 4, .head_dim = 256},
      products{.heads = 16, .kv_heads = 4, .head_dim = 512};
  const AttentionTime fast = attention_time(fused, h200(), 8192, 8192),
                      slow = attention_time(products, h200(), 8192, 8192);
  EXPECT_GT(slow.backward, fast.backward / 2); // of as many operations
  const double scores = 8192.0 * 16 * 4096;
  EXPECT_NEAR(
      slow.forward, 4 * scores * 512 / h200().matmul_flops + 16 * scores / h200().memory_bytes, 1e-3 * slow.forward);
  // A window leaves its share of either.
  models::AttentionSpec windowed = products;
  windowed.window = 1024;
  EXPECT_NEAR(
      attention_time(windowed, h200(), 8192, 8192).forward / slow.forward, windowed.attended_tokens(8192) / 4096, 1e-9);
}

TEST(AttentionTime, WhatHasNoFusedKernelIsNamed) {
  EXPECT_EQ(slow_attention_text(model(256), h200(), 4096), "");
  EXPECT_THAT(slow_attention_text(model(512), h200(), 4096), HasSubstr("in 1 of 3 layers (heads of 512): it runs"));
  EXPECT_THAT(slow_attention_text(model(128, 50), h200(), 4096), HasSubstr("1 of 3 layers (scores capped at 50)"));
}

TEST(AttentionTime, APlanWarnsOfIt) {
  const auto warnings = [](const models::ModelConfig& student, const models::ModelConfig& teacher) {
    config::Config config;
    config.data.seq_len = 4096;
    const auto plan = make_plan({config, student, trainer::TeacherSpec::running({teacher, nullptr}), Target{}, h200()});
    TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
    for (const std::string& warning : plan->warnings()) {
      EXPECT_THAT(plan->text(), HasSubstr(warning));
    }
    return plan->warnings();
  };
  EXPECT_THAT(warnings(model(128), model(256)), testing::IsEmpty());
  EXPECT_THAT(
      warnings(model(128), model(512)), testing::ElementsAre(HasSubstr("teacher: no fused kernel computes attention")));
}

// The sums of the rule's, the convolution's and the norm's times on an H100 (docs/models.md).
TEST(AttentionTime, ADeltaRuleTakesWhatWasMeasured) {
  struct Measured {
    int64_t value_heads;
    double tokens, forward, backward; // milliseconds
  };
  for (const Measured& one :
       {Measured{32, 8192, 1.244, 2.637}, Measured{32, 65536, 9.386, 20.527}, Measured{48, 8192, 1.801, 3.692},
        Measured{48, 65536, 12.868, 27.073}}) {
    const models::DeltaSpec spec{.key_heads = 16, .value_heads = one.value_heads, .key_dim = 128, .value_dim = 128};
    const AttentionTime time = delta_time(spec, *machine_named("H100-SXM"), one.tokens, /*element=*/2);
    EXPECT_NEAR(1e3 * time.forward / one.forward, 1, 0.2) << one.value_heads << " heads, " << one.tokens << " tokens";
    EXPECT_NEAR(1e3 * time.backward / one.backward, 1, 0.2) << one.value_heads << " heads, " << one.tokens << " tokens";
  }
}

} // namespace
} // namespace distill::plan
