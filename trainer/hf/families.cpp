#include "trainer/hf/families.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

namespace distill::hf {
namespace {

using models::LayerKind;
using models::NormSpec;

constexpr Family kFamilies[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .describe = [](LayerKind&) {}},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .describe = [](LayerKind&) {},
     .default_kv_heads = 8,
     .window = SlidingWindow::kAlways},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .describe = [](LayerKind& kind) { kind.attention.qkv_bias = true; },
     .default_kv_heads = 32,
     .window = SlidingWindow::kSwitched},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .describe = [](LayerKind& kind) { kind.attention.qk_norm = true; },
     .default_head_dim = 128,
     .default_kv_heads = 32,
     .window = SlidingWindow::kSwitched},
    // Without windows; with them, its layers of full attention have no RoPE.
    {.model_type = "exaone4",
     .architecture = "Exaone4ForCausalLM",
     .describe =
         [](LayerKind& kind) {
           kind.attention.qk_norm = true;
           kind.attention_norms = {.before = {}, .after = NormSpec{"post_attention_layernorm"}};
           kind.mlp_norms = {.before = {}, .after = NormSpec{"post_feedforward_layernorm"}};
         },
     .default_kv_heads = 32,
     .window = SlidingWindow::kRefused},
};

} // namespace

const Family* find_family(std::string_view model_type) {
  const auto* found = std::find_if(std::begin(kFamilies), std::end(kFamilies), [&](const Family& family) {
    return model_type == family.model_type;
  });
  return found == std::end(kFamilies) ? nullptr : found;
}

std::string family_names() {
  std::string names;
  for (const Family& family : kFamilies) {
    const char* separator = names.empty() ? "" : &family == std::end(kFamilies) - 1 ? " or " : ", ";
    absl::StrAppend(&names, separator, family.model_type);
  }
  return names;
}

} // namespace distill::hf
