#include "trainer/hf/peft_config.h"

#include <absl/strings/match.h>
#include <gmock/gmock.h>

#include "tests/trainer/models/llama_like.h"

namespace distill::hf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string config_text(const std::string& more, const std::string& targets = R"(["q_proj"])") {
  return R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": )" + targets +
      (more.empty() ? "" : ", " + more) + "}";
}

absl::StatusOr<models::AdapterSpec> resolved(const std::string& text, models::ModelConfig model, bool each = false) {
  const auto config = parse_peft_config(text, "adapter_config.json");
  return config.ok() ? resolve_adapter(*config, model, "adapter_config.json", each) : config.status();
}

models::ModelConfig model_of(models::LayerKind kind = {}, bool tied = false) {
  models::ModelConfig model = models::llama_like({.hidden = 16, .layers = 3}, kind);
  model.tie_word_embeddings = tied;
  return model;
}

std::vector<std::string> names_of(const models::AdapterSpec& adapter) {
  std::vector<std::string> names;
  for (const models::AdaptedModule& module : adapter.modules) {
    names.push_back(module.name.substr(std::string("model.layers.").size()));
  }
  return names;
}

std::string message(const absl::Status& status) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(PeftConfig, TargetsAreNamesOrAnExpressionOrAllLinear) {
  const models::ModelConfig model = model_of();
  EXPECT_THAT(
      names_of(*resolved(config_text("", R"(["v_proj", "1.mlp.down_proj"])"), model)),
      ElementsAre("0.self_attn.v_proj", "1.self_attn.v_proj", "1.mlp.down_proj", "2.self_attn.v_proj"));
  EXPECT_THAT(
      names_of(*resolved(config_text("", R"x(".*\\.(0|2)\\..*(o|up)_proj")x"), model)),
      ElementsAre("0.self_attn.o_proj", "0.mlp.up_proj", "2.self_attn.o_proj", "2.mlp.up_proj"));
  EXPECT_EQ(resolved(config_text("", R"("all-linear")"), model)->modules.size(), 3U * 7);
  EXPECT_THAT(
      names_of(*resolved(config_text(R"("layers_to_transform": [1])"), model)), ElementsAre("1.self_attn.q_proj"));
  EXPECT_THAT(
      names_of(*resolved(config_text(R"("exclude_modules": ".*\\.1\\..*", "layers_to_transform": null)"), model)),
      ElementsAre("0.self_attn.q_proj", "2.self_attn.q_proj"));
}

TEST(PeftConfig, ModulesKnowTheirRowsOfTheFusedProduct) {
  const auto adapter = resolved(config_text("", R"(["v_proj", "up_proj"])"), model_of());
  ASSERT_TRUE(adapter.ok());
  const models::AdaptedModule &v = adapter->modules[0], &up = adapter->modules[1];
  EXPECT_EQ(v.product, "qkv");
  EXPECT_EQ(v.first_row, 16 + 8);
  EXPECT_EQ(v.rows, 8);
  EXPECT_EQ(up.product, "gate_up");
  EXPECT_EQ(up.first_row, 24);
  EXPECT_EQ(up.rows, 24);
  models::LayerKind fused;
  fused.fused_tensors = true;
  const auto whole = resolved(config_text("", R"(["qkv_proj"])"), model_of(fused));
  EXPECT_EQ(whole->modules[0].rows, 16 + 8 + 8);
  EXPECT_THAT(message(resolved(config_text(""), model_of(fused)).status()), HasSubstr("qkv_proj"));
}

TEST(PeftConfig, PatternsGiveRanksAndAlphas) {
  const auto adapter = resolved(
      config_text(
          R"("rank_pattern": {"0.self_attn.q_proj": 2, "^model.layers.1.*q_proj": 4}, "alpha_pattern": {"q_proj": 3})"),
      model_of());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->modules[0].rank, 2);
  EXPECT_DOUBLE_EQ(adapter->modules[0].scale, 3.0 / 2);
  EXPECT_EQ(adapter->modules[1].rank, 4);
  EXPECT_EQ(adapter->modules[2].rank, 8);
  const auto rslora = resolved(config_text(R"("use_rslora": true)"), model_of());
  EXPECT_DOUBLE_EQ(rslora->modules[0].scale, 16 / std::sqrt(8.0));
}

TEST(PeftConfig, ModulesToSaveAreTrainedWhole) {
  const auto adapter = resolved(config_text(R"("modules_to_save": ["lm_head", "input_layernorm"])"), model_of());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_THAT(
      adapter->whole,
      ElementsAre(
          "model.layers.0.input_layernorm.weight", "model.layers.1.input_layernorm.weight",
          "model.layers.2.input_layernorm.weight", "lm_head.weight"));
  EXPECT_THAT(
      message(resolved(config_text(R"("modules_to_save": ["down_proj"])"), model_of()).status()),
      HasSubstr("a matrix of a block"));
  const models::ModelConfig tied = model_of({}, /*tied=*/true);
  EXPECT_THAT(
      message(resolved(config_text(R"("modules_to_save": ["embed_tokens"])"), tied).status()),
      HasSubstr("both of embed_tokens and lm_head"));
  EXPECT_THAT(
      resolved(config_text(R"("modules_to_save": ["embed_tokens", "lm_head"])"), tied)->whole,
      ElementsAre("model.embed_tokens.weight"));
}

TEST(PeftConfig, WhatWouldDoNothingOrCannotBeComputedIsAnError) {
  const models::ModelConfig model = model_of();
  EXPECT_THAT(
      message(resolved(config_text("", R"(["c_attn"])"), model).status()),
      ::testing::AllOf(HasSubstr("would do nothing"), HasSubstr("q_proj")));
  EXPECT_THAT(
      message(resolved(config_text("", R"(["q_proj", "c_attn"])"), model, /*each=*/true).status()),
      HasSubstr("names that none has: c_attn"));
  EXPECT_TRUE(resolved(config_text("", R"(["q_proj", "c_attn"])"), model).ok());
  EXPECT_THAT(message(resolved(config_text("", R"(["lm_head"])"), model).status()), HasSubstr("modules_to_save"));
  EXPECT_THAT(message(resolved(config_text("", R"("(")"), model).status()), HasSubstr("a regular expression"));
  models::LayerKind experts;
  experts.mlp.experts = models::ExpertsSpec{.count = 4, .per_token = 2};
  EXPECT_THAT(
      message(resolved(config_text("", R"(["up_proj"])"), model_of(experts)).status()), HasSubstr("the expert"));
  EXPECT_THAT(message(resolved(config_text("", R"("all-linear")"), model_of(experts)).status()), HasSubstr("router"));
  EXPECT_EQ(resolved(config_text("", R"(["q_proj", "o_proj"])"), model_of(experts))->modules.size(), 6U);
  for (const auto& [more, key] : std::vector<std::pair<std::string, std::string>>{
           {R"("use_dora": true)", "use_dora"},
           {R"("bias": "all")", "bias"},
           {R"("init_lora_weights": "pissa_niter_4")", "init_lora_weights"},
           {R"("target_parameters": ["experts"])", "target_parameters"},
           {R"("rank_pattern": {"q_proj": 0})", "rank_pattern.q_proj"},
           {R"("a_new_key": 3)", "a_new_key"},
           {R"("lora_dropout": 1)", "lora_dropout"},
           {R"("layers_to_transform": ["one"])", "layers_to_transform"}}) {
    EXPECT_THAT(
        message(resolved(config_text(more), model).status()),
        ::testing::StartsWith("adapter_config.json: " + key + ": expected"))
        << more;
  }
  EXPECT_THAT(message(resolved(R"({"peft_type": "IA3", "r": 4})", model).status()), HasSubstr("peft_type"));
  EXPECT_THAT(message(resolved(R"({"peft_type": "LORA"})", model).status()), HasSubstr(": r: expected an integer"));
}

TEST(PeftConfig, KeysThatChangeNothingAreRead) {
  EXPECT_TRUE(resolved(
                  config_text(R"("task_type": "CAUSAL_LM", "peft_version": "0.21.2", "bias": "none", "use_dora": false,
                    "loftq_config": {}, "megatron_core": "megatron.core", "qalora_group_size": 16, "a_new_key": null,
                    "layer_replication": null, "init_lora_weights": true, "revision": null, "inference_mode": true,
                    "layers_pattern": null, "eva_config": null, "modules_to_save": null, "base_model_name_or_path": "x")"),
                  model_of())
                  .ok());
}

TEST(PeftConfig, WhatIsWrittenReadsBackEqual) {
  const models::ModelConfig model = model_of();
  const std::string text = config_text(
      R"("use_rslora": true, "rank_pattern": {"0.self_attn.q_proj": 2}, "alpha_pattern": {"q_proj": 2.5},
        "modules_to_save": ["norm"], "layers_to_transform": [0, 1], "lora_dropout": 0.25)",
      R"("all-linear")");
  const auto config = parse_peft_config(text, "a");
  const auto adapter = resolve_adapter(*config, model, "a", false);
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const std::string written = peft_config_text(*config, *adapter);
  EXPECT_THAT(written, ::testing::Not(HasSubstr("all-linear")));
  const auto again = resolved(written, model);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *adapter);
}

} // namespace
} // namespace distill::hf
