#include "trainer/hf/families.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <vector>

#include "trainer/hf/experts_keys.h"
#include "trainer/hf/gemma.h"
#include "trainer/hf/qwen3_5.h"

namespace distill::hf {
namespace {

using models::LayerKind;
using models::ModelConfig;
using models::NormSpec;

LayerKind& norms_after(LayerKind& kind) {
  kind.attention_norms = {.before = {}, .after = NormSpec{"post_attention_layernorm"}};
  kind.mlp_norms = {.before = {}, .after = NormSpec{"post_feedforward_layernorm"}};
  return kind;
}

void describe_olmo(KeyReader&, ModelConfig&, LayerKind& kind) {
  norms_after(kind).attention.qk_norm = {.whole = true};
}

// SmolLM3's layers with RoPE: those with a 1 in no_rope_layers or, without that list, all but each
// no_rope_layer_interval-th.
std::vector<bool> smollm3_ropes(KeyReader& keys, bool, const std::vector<bool>& slides) {
  std::vector<bool> rotates;
  const int64_t interval = keys.optional_integer("no_rope_layer_interval", 1, int64_t{1} << 31).value_or(1);
  const KeyReader::Json* listed = keys.take("no_rope_layers");
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    const bool has_entry = listed != nullptr && listed->is_array() && layer < listed->size();
    rotates.push_back(has_entry ? (*listed)[layer] == 1 : (static_cast<int64_t>(layer) + 1) % interval != 0);
    if (listed != nullptr && (!has_entry || ((*listed)[layer] != 0 && (*listed)[layer] != 1))) {
      keys.complain(
          "no_rope_layers: 0 or 1 for each of num_hidden_layers, ", slides.size(), ", is expected, found ",
          KeyReader::text(*listed));
      return std::vector<bool>(slides.size(), true);
    }
  }
  return rotates;
}

void describe_qwen3_moe(KeyReader& keys, ModelConfig& model, LayerKind& kind) {
  kind.attention.qk_norm.emplace();
  read_experts(keys, model, kind);
}

constexpr Family kFamilies[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .part_defaults =
         R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
             "eos_token_id": 2})"},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .defaults = R"({"num_key_value_heads": 8, "sliding_window": 4096})",
     .part_defaults =
         R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
             "eos_token_id": 2})",
     .windows = WindowLayers::kAll},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .defaults = R"({"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28})",
     .part_defaults =
         R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
             "eos_token_id": null})",
     .describe = [](KeyReader&, ModelConfig&, LayerKind& kind) { kind.attention.qkv_bias = true; },
     .windows = WindowLayers::kLater},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .defaults = R"({"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28})",
     .part_defaults =
         R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
             "eos_token_id": null})",
     .describe = [](KeyReader&, ModelConfig&, LayerKind& kind) { kind.attention.qk_norm.emplace(); },
     .windows = WindowLayers::kLater},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .defaults = R"({"num_key_value_heads": 4, "sliding_window": 4096, "num_experts_per_tok": 8,
       "moe_intermediate_size": 768, "router_aux_loss_coef": 0.001})",
     .describe = describe_qwen3_moe,
     .windows = WindowLayers::kSwitched,
     .has_experts = layers_with_experts,
     .experts_were_modules = true},
    {.model_type = "qwen3_5_text",
     .architecture = "Qwen3_5ForCausalLM",
     .defaults = R"({"num_key_value_heads": 4, "head_dim": 256, "linear_conv_kernel_dim": 4,
       "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
       "linear_num_value_heads": 32})",
     .part_defaults =
         R"({"vocab_size": 248320, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 32,
             "num_attention_heads": 16, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
             "eos_token_id": null})",
     .describe = describe_qwen3_5,
     .describe_linear = describe_qwen3_5_linear,
     .rope = {.partial = true, .default_partial = 0.25, .sections = true}},
    {.model_type = "qwen3_5_moe_text",
     .architecture = "Qwen3_5MoeForCausalLM",
     .defaults = R"({"num_key_value_heads": 2, "head_dim": 256, "linear_conv_kernel_dim": 4,
       "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
       "linear_num_value_heads": 32, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
       "shared_expert_intermediate_size": 512, "intermediate_size": 512, "router_aux_loss_coef": 0.001})",
     .part_defaults =
         R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
             "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "eos_token_id": null})",
     .describe = describe_qwen3_5_moe,
     .describe_linear = describe_qwen3_5_linear,
     .rope = {.partial = true, .default_partial = 0.25, .sections = true}},
    {.model_type = "exaone4",
     .architecture = "Exaone4ForCausalLM",
     .defaults = R"({"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4})",
     .part_defaults =
         R"({"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
             "eos_token_id": 2})",
     .describe = [](KeyReader&, ModelConfig&, LayerKind& kind) { norms_after(kind).attention.qk_norm.emplace(); },
     .windows = WindowLayers::kPattern,
     // In a model with windows, the layers without one have no RoPE.
     .rotates =
         [](KeyReader&, bool has_window, const std::vector<bool>& slides) {
           return has_window ? slides : std::vector<bool>(slides.size(), true);
         }},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .part_defaults =
         R"({"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
             "eos_token_id": 50279})",
     .describe = describe_olmo},
    {.model_type = "olmo3",
     .architecture = "Olmo3ForCausalLM",
     .defaults = R"({"sliding_window": 4096, "sliding_window_pattern": 4})",
     .part_defaults =
         R"({"vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
             "eos_token_id": 50279})",
     .describe = describe_olmo,
     .windows = WindowLayers::kPattern,
     .rope = {.theta = 500000, .by_layer_type = true, .sliding_theta = 500000}},
    {.model_type = "ministral3",
     .architecture = "Ministral3ForCausalLM",
     .defaults = R"({"num_key_value_heads": 8, "head_dim": 128})",
     .part_defaults =
         R"({"vocab_size": 131072, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 34,
             "num_attention_heads": 32, "max_position_embeddings": 262144, "rms_norm_eps": 1e-5,
             "eos_token_id": 2})",
     .windows = WindowLayers::kAll,
     .rope = {.scaled_queries = true}},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .defaults = R"({"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
       "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
       "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
       "sliding_window_pattern": 6})",
     .part_defaults = R"({"eos_token_id": 1})",
     .describe = describe_gemma3,
     .windows = WindowLayers::kPattern,
     .rope = {.theta = 1e6, .by_layer_type = true, .sliding_theta = 1e4, .sliding_theta_key = "rope_local_base_freq"}},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .defaults = R"({"vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
       "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
       "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "query_pre_attn_scalar": 256, "sliding_window": 4096,
       "sliding_window_pattern": 2, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})",
     .part_defaults = R"({"eos_token_id": 1})",
     .describe = describe_gemma2,
     .windows = WindowLayers::kPattern},
    {.model_type = "gemma4_text",
     .architecture = "Gemma4ForCausalLM",
     .defaults = R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
       "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
       "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "sliding_window": 512, "sliding_window_pattern": 6,
       "hidden_size_per_layer_input": 256,
       "rope_parameters": {
         "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})",
     .part_defaults = R"({"eos_token_id": 1})",
     .describe = describe_gemma4,
     .describe_full = describe_gemma4_full,
     .windows = WindowLayers::kPatternThenFull,
     .rope = {.theta = 1e6, .by_layer_type = true, .sliding_theta = 1e4, .proportional = true}},
    {.model_type = "gemma4_unified_text",
     .architecture = "Gemma4UnifiedForCausalLM",
     .defaults = R"({"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
       "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 262144,
       "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "sliding_window": 1024, "sliding_window_pattern": 6,
       "rope_parameters": {
         "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})",
     .part_defaults = R"({"eos_token_id": 1})",
     .describe = describe_gemma4,
     .describe_full = describe_gemma4_full,
     .windows = WindowLayers::kPatternThenFull,
     .rope = {.theta = 1e6, .by_layer_type = true, .sliding_theta = 1e4, .proportional = true}},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .defaults = R"({"num_key_value_heads": 4, "tie_word_embeddings": true, "no_rope_layer_interval": 4})",
     .part_defaults =
         R"({"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
             "num_attention_heads": 16, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
             "eos_token_id": 128001})",
     .windows = WindowLayers::kListed,
     .rotates = smollm3_ropes,
     .rope = {.theta = 2e6}},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .defaults = R"({"original_max_position_embeddings": 4096})",
     .part_defaults =
         R"({"vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
             "num_attention_heads": 32, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
             "eos_token_id": 32000})",
     .describe = [](KeyReader&, ModelConfig&, LayerKind& kind) { kind.fused_tensors = true; },
     .windows = WindowLayers::kAll,
     .rope = {.partial = true, .all_long = true}},
};

constexpr MultimodalFamily kMultimodalFamilies[] = {
    {.model_type = "llava",
     .architecture = "LlavaForConditionalGeneration",
     .text_type = "llama",
     .tied_by_default = false},
    {.model_type = "mistral3",
     .architecture = "Mistral3ForConditionalGeneration",
     .text_type = "mistral",
     .tied_by_default = true},
    {.model_type = "gemma3",
     .architecture = "Gemma3ForConditionalGeneration",
     .text_type = "gemma3_text",
     .tied_by_default = true},
    {.model_type = "gemma4",
     .architecture = "Gemma4ForConditionalGeneration",
     .text_type = "gemma4_text",
     .tied_by_default = true},
    {.model_type = "gemma4_unified",
     .architecture = "Gemma4UnifiedForConditionalGeneration",
     .text_type = "gemma4_unified_text",
     .tied_by_default = true},
    {.model_type = "qwen3_5",
     .architecture = "Qwen3_5ForConditionalGeneration",
     .text_type = "qwen3_5_text",
     .tied_by_default = false},
    {.model_type = "qwen3_5_moe",
     .architecture = "Qwen3_5MoeForConditionalGeneration",
     .text_type = "qwen3_5_moe_text",
     .tied_by_default = false},
};

template <typename Row, size_t N>
const Row* find_row(const Row (&rows)[N], std::string_view model_type) {
  const auto* found =
      std::find_if(std::begin(rows), std::end(rows), [&](const Row& row) { return model_type == row.model_type; });
  return found == std::end(rows) ? nullptr : found;
}

std::string listed(std::vector<std::string> names) {
  const std::string last = std::move(names.back());
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " or ", last);
}

} // namespace

const Family* find_family(std::string_view model_type) {
  return find_row(kFamilies, model_type);
}

const MultimodalFamily* find_multimodal_family(std::string_view model_type) {
  return find_row(kMultimodalFamilies, model_type);
}

std::string family_names() {
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    names.emplace_back(family.model_type);
  }
  return listed(std::move(names));
}

std::string multimodal_family_names() {
  std::vector<std::string> names;
  for (const MultimodalFamily& family : kMultimodalFamilies) {
    if (find_family(family.text_type) != nullptr) {
      names.emplace_back(family.model_type);
    }
  }
  return listed(std::move(names));
}

} // namespace distill::hf
