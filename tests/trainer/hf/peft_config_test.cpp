#include "trainer/hf/peft_config.h"

#include <absl/strings/match.h>
#include <gmock/gmock.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/hf/peft_experts.h"

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
  names.reserve(adapter.modules.size());
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
  const auto adapter = resolved(config_text("", R"(["v_proj", "up_proj"])"), model_of()).value();
  const models::AdaptedModule &v = adapter.modules[0], &up = adapter.modules[1];
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
  const auto adapter =
      resolved(
          config_text(
              R"("rank_pattern": {"0.self_attn.q_proj": 2, "^model.layers.1.*q_proj": 4}, "alpha_pattern": {"q_proj": 3})"),
          model_of())
          .value();
  EXPECT_EQ(adapter.modules[0].rank, 2);
  EXPECT_DOUBLE_EQ(adapter.modules[0].scale, 3.0 / 2);
  EXPECT_EQ(adapter.modules[1].rank, 4);
  EXPECT_EQ(adapter.modules[2].rank, 8);
  const auto rslora = resolved(config_text(R"("use_rslora": true)"), model_of());
  EXPECT_DOUBLE_EQ(rslora->modules[0].scale, 16 / std::sqrt(8.0));
}

TEST(PeftConfig, ModulesToSaveAreTrainedWhole) {
  const auto adapter =
      resolved(config_text(R"("modules_to_save": ["lm_head", "input_layernorm"])"), model_of()).value();
  EXPECT_THAT(
      adapter.whole,
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
  for (const auto& [more, key] : std::vector<std::pair<std::string, std::string>>{
           {R"("use_dora": true)", "use_dora"},
           {R"("bias": "all")", "bias"},
           {R"("init_lora_weights": "pissa_niter_4")", "init_lora_weights"},
           {R"("target_parameters": "experts")", "target_parameters"},
           {R"("target_parameters": ["input_layernorm.weight"])", "target_parameters"},
           {R"("target_parameters": ["lm_head.weight"])", "target_parameters"},
           {R"("target_parameters": ["q_proj.weight"])", "target_parameters"},
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

// With experts in their own tensors, as transformers 4 had them; `type`: qwen3_moe, or one that peft does not convert.
models::ModelConfig experts_model(const std::string& type = "qwen3_moe") {
  models::LayerKind kind;
  kind.mlp.experts = models::ExpertsSpec{.count = 4, .per_token = 2, .shared_ffn = type == "qwen3_moe" ? 0 : 16};
  models::ModelConfig model = models::llama_like({.hidden = 16, .layers = 1}, kind);
  model.model_type = type;
  return model;
}

constexpr const char* kExperts = R"("target_parameters": ["mlp.experts.gate_up_proj", "experts.down_proj"])";

// peft wraps a module once for each of its parameters.
TEST(PeftConfig, ExpertsAreParameters) {
  for (const bool stacked : {false, true}) {
    models::ModelConfig model = experts_model();
    model.kinds[0].mlp.experts->stacked_tensors = stacked;
    const auto both = resolved(config_text(kExperts, "[]"), model, /*each=*/true).value();
    EXPECT_THAT(names_of(both), ElementsAre("0.mlp.experts.gate_up_proj", "0.mlp.experts.down_proj"));
    const models::AdaptedModule &gate_up = both.modules[0], &down = both.modules[1];
    EXPECT_EQ(gate_up.stored_name(), "model.layers.0.mlp.experts.base_layer");
    EXPECT_EQ(down.stored_name(), "model.layers.0.mlp.experts");
    EXPECT_EQ(gate_up.product, "gate_up");
    EXPECT_EQ(gate_up.rows, 2 * 24);
    EXPECT_EQ(down.rows, 16);
    EXPECT_EQ(down.rank, 8);
    const auto one =
        resolved(
            config_text(R"("target_parameters": ["gate_up_proj"], "rank_pattern": {"experts.gate_up_proj": 3})"), model)
            .value();
    EXPECT_THAT(names_of(one), ElementsAre("0.self_attn.q_proj", "0.mlp.experts.gate_up_proj"));
    EXPECT_EQ(one.modules[1].stored_name(), "model.layers.0.mlp.experts");
    EXPECT_EQ(one.modules[1].rank, 3);
    const auto router = resolved(config_text(R"("target_parameters": ["mlp.gate.weight"])", "[]"), model).value();
    EXPECT_EQ(router.modules[0].stored_name(), "model.layers.0.mlp.gate");
    EXPECT_EQ(router.modules[0].product, "router");
  }
}

// peft/utils/transformers_weight_conversion.py
TEST(PeftConfig, OlderNamesOfExpertsMeanTheirParameters) {
  const std::string names = R"(["q_proj", "gate_proj", "up_proj", "down_proj"])";
  const auto named = resolved(config_text("", names), experts_model(), /*each=*/true).value();
  EXPECT_THAT(
      names_of(named), ElementsAre("0.self_attn.q_proj", "0.mlp.experts.gate_up_proj", "0.mlp.experts.down_proj"));
  EXPECT_EQ(named.modules[1].rank, 16); // of gate_proj and of up_proj
  EXPECT_DOUBLE_EQ(named.modules[1].scale, 2);
  EXPECT_EQ(named.modules[2].rank, 8);
  EXPECT_DOUBLE_EQ(named.modules[2].scale, 2);
  const auto rslora = resolved(config_text(R"("use_rslora": true)", names), experts_model());
  EXPECT_NEAR(rslora->modules[1].scale, rslora->modules[2].scale, 1e-12);
  EXPECT_THAT(
      names_of(*resolved(config_text("", R"("all-linear")"), experts_model())),
      ElementsAre(
          "0.self_attn.q_proj", "0.self_attn.k_proj", "0.self_attn.v_proj", "0.self_attn.o_proj", "0.mlp.gate.weight",
          "0.mlp.experts.gate_up_proj", "0.mlp.experts.down_proj"));
  // Experts that were parameters from the first: the names are those of the shared expert, all-linear leaves them out.
  const models::ModelConfig other = experts_model("qwen3_5_moe_text");
  EXPECT_THAT(
      names_of(*resolved(config_text("", R"("all-linear")"), other)),
      ElementsAre(
          "0.self_attn.q_proj", "0.self_attn.k_proj", "0.self_attn.v_proj", "0.self_attn.o_proj",
          "0.mlp.shared_expert_gate", "0.mlp.shared_expert.gate_proj", "0.mlp.shared_expert.up_proj",
          "0.mlp.shared_expert.down_proj"));
  EXPECT_THAT(
      names_of(*resolved(config_text("", R"(["gate_proj"])"), other, /*each=*/true)),
      ElementsAre("0.mlp.shared_expert.gate_proj"));
  EXPECT_THAT(
      names_of(*resolved(config_text("", R"(".*mlp.*down_proj")"), other)),
      ElementsAre("0.mlp.shared_expert.down_proj"));
  EXPECT_THAT(
      message(resolved(config_text("", R"(["experts.1.gate_proj"])"), other, /*each=*/true).status()),
      HasSubstr("names that none has: experts.1.gate_proj"));
}

TEST(PeftConfig, AdaptersOfExpertsThatPeftDoesNotHaveAreErrors) {
  const models::ModelConfig model = experts_model();
  const auto says = [&](const std::string& more, const std::string& targets, const std::string& expected) {
    EXPECT_THAT(message(resolved(config_text(more, targets), model, /*each=*/true).status()), HasSubstr(expected));
  };
  says("", R"(["gate_proj"])", "expected both of gate_proj and up_proj");
  says("", R"(["experts.2.down_proj"])", "found the expert model.layers.0.mlp.experts.2.down_proj");
  says("", R"(".*up_proj")", "mlp.experts.gate_up_proj");
  says("", R"(".*mlp\\.gate")", "found the router model.layers.0.mlp.gate");
  says(R"("target_parameters": ["mlp.experts.gate"])", "[]", "names that none has: mlp.experts.gate");
  says(R"("target_parameters": ["q_proj.weight"])", R"(["q_proj"])", "not among the targets too");
  says(std::string(kExperts) + R"(, "lora_dropout": 0.1)", "[]", "dropout: expected 0 with target_parameters");
  EXPECT_THAT(
      message(resolved(config_text(kExperts), model_of(), /*each=*/true).status()), HasSubstr("has no experts"));
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
  const auto adapter = resolve_adapter(*config, model, "a", false).value();
  const std::string written = peft_config_text(*config, adapter);
  EXPECT_THAT(written, ::testing::Not(HasSubstr("all-linear")));
  const auto again = resolved(written, model).value();
  EXPECT_EQ(again, adapter);
}

TEST(PeftConfig, ExpertsThatAreWrittenReadBackEqual) {
  const models::ModelConfig model = experts_model();
  for (const auto& [more, targets] :
       {std::pair{"", R"("all-linear")"}, {kExperts, "[]"}, {"", R"(["gate", "o_proj"])"}}) {
    const auto config = with_expert_parameters(*parse_peft_config(config_text(more, targets), "a"), model).value();
    const auto adapter = resolve_adapter(config, model, "a", false).value();
    const std::string written = peft_config_text(config, adapter);
    EXPECT_THAT(written, HasSubstr("target_parameters"));
    EXPECT_THAT(written, ::testing::Not(HasSubstr("\"target_modules\": null"))); // for which peft takes the family's
    const auto again = resolved(written, model, /*each=*/true).value();
    EXPECT_EQ(again, adapter);
  }
}

} // namespace
} // namespace distill::hf
