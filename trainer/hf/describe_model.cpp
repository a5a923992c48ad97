#include "trainer/hf/describe_model.h"

#include "data/base/status_macros.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/save_model.h"

namespace distill::hf {
namespace {

std::string with_commas(int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

void append_rope(std::string& text, const models::RopeSpec& rope) {
  absl::StrAppendFormat(&text, "rope theta %g", rope.theta);
  if (rope.llama3) {
    absl::StrAppendFormat(
        &text, ", llama3 scaling (factor %g, low %g, high %g, original context %d)", rope.llama3->factor,
        rope.llama3->low_freq_factor, rope.llama3->high_freq_factor, rope.llama3->original_max_position_embeddings);
  }
  if (rope.turning_pairs) {
    absl::StrAppendFormat(&text, ", the first %d of %d pairs of a head turn", *rope.turning_pairs, rope.dim / 2);
  }
  if (rope.linear_factor != 1.0) {
    absl::StrAppendFormat(&text, ", linear scaling (factor %g)", rope.linear_factor);
  }
  if (rope.yarn) {
    absl::StrAppendFormat(
        &text, ", yarn scaling (factor %g, beta %g to %g, original context %d, attention factor %g)", rope.yarn->factor,
        rope.yarn->beta_fast, rope.yarn->beta_slow, rope.yarn->original_max_position_embeddings, rope.attention_factor);
  }
  if (rope.longrope) {
    absl::StrAppendFormat(
        &text, ", longrope scaling (original context %d, attention factor %g)",
        rope.longrope->original_max_position_embeddings, rope.attention_factor);
  }
  if (rope.query_scaling) {
    absl::StrAppendFormat(
        &text, ", queries scaled beyond %d tokens (beta %g)", rope.query_scaling->original_max_position_embeddings,
        rope.query_scaling->beta);
  }
}

void append_delta(std::string& text, const models::DeltaSpec& delta) {
  absl::StrAppendFormat(
      &text, "  gated delta rule: %d value heads of %d, %d key heads of %d, convolution over %d tokens",
      delta.value_heads, delta.value_dim, delta.key_heads, delta.key_dim, delta.conv_width);
}

void append_attention(std::string& text, const models::AttentionSpec& attention, const models::ModelConfig& config) {
  absl::StrAppendFormat(
      &text, "  %d heads of %d, %d key/value heads%s%s%s%s%s", attention.heads, attention.head_dim, attention.kv_heads,
      attention.qkv_bias ? ", qkv bias" : "",
      attention.qk_norm ? (attention.v_norm ? ", q, k and v norms" : ", q and k norms") : "",
      attention.keys_are_values ? ", keys are values" : "", attention.output_gate ? ", gated output" : "",
      attention.softcap > 0 ? absl::StrFormat(", scores capped at %g", attention.softcap) : "");
  if (attention.window) {
    absl::StrAppendFormat(&text, ", window of %d tokens", *attention.window);
  }
  const models::AttentionSpec& first = config.kinds.front().attention;
  if ((!config.kinds.front().delta && attention.rope != first.rope) || !attention.rope) {
    absl::StrAppend(&text, attention.rope ? absl::StrCat(", rope ", *attention.rope + 1) : ", no rope");
  }
}

void append_architecture(std::string& text, const models::ModelConfig& config) {
  absl::StrAppendFormat(
      &text, "  %s, %d layers, hidden %d, %s, vocabulary %d, %s embeddings\n", config.model_type, config.num_layers(),
      config.hidden_size, models::mlp_text(config), config.vocab_size, config.tie_word_embeddings ? "tied" : "untied");
  for (int64_t kind = 0; kind < static_cast<int64_t>(config.kinds.size()); ++kind) {
    const models::LayerKind& own = config.kinds[static_cast<size_t>(kind)];
    own.delta ? append_delta(text, *own.delta) : append_attention(text, own.attention, config);
    if (config.kinds.size() > 1) {
      absl::StrAppendFormat(&text, ", in %d layers", config.count_of(kind));
    }
    absl::StrAppend(&text, "\n");
  }
  for (const models::RopeSpec& rope : config.ropes) {
    absl::StrAppend(&text, &rope == &config.ropes.front() ? "  " : ", ");
    append_rope(text, rope);
  }
  absl::StrAppendFormat(&text, ", context %d tokens", config.max_position_embeddings);
  const std::vector<models::UnitLayout> units = models::unit_layouts(config);
  const int64_t all = models::parameter_count(units), active = models::active_parameter_count(units);
  absl::StrAppendFormat(
      &text, "\n  %s parameters%s\n", with_commas(all),
      active < all ? absl::StrCat(", ", with_commas(active), " of them for each token") : std::string());
}

void append_unit(std::string& text, const models::UnitLayout& unit) {
  for (const models::ParamLayout& param : unit.params) {
    // Of experts, the first one.
    const bool each = param.groups > 1 && param.parts.front().stacked == 1;
    const std::string others = each ? absl::StrFormat(" and %d more", param.groups - 1) : std::string();
    for (size_t i = 0; i < param.parts.size() / static_cast<size_t>(each ? param.groups : 1); ++i) {
      const models::ParamPart& part = param.parts[i];
      absl::StrAppendFormat(
          &text, "    %-50s [%s]%s\n", part.hf_name, absl::StrJoin(models::part_shape(param, part), ", "), others);
    }
  }
}

void append_shapes(std::string& text, const models::ModelConfig& config) {
  for (const models::UnitLayout& unit : models::unit_layouts(config)) {
    const auto kind = unit.block < 0 ? -1 : config.layers[static_cast<size_t>(unit.block)];
    const auto first = std::find(config.layers.begin(), config.layers.end(), kind) - config.layers.begin();
    if (unit.block < 0 || first == unit.block) {
      absl::StrAppend(
          &text, "  ", unit.block < 0 ? unit.name : absl::StrCat("each of ", config.count_of(kind), " blocks"), "\n");
      append_unit(text, unit);
    }
  }
}

void append_files(std::string& text, const ModelFiles& files) {
  struct Count {
    int64_t tensors = 0;
    int64_t bytes = 0;
  };
  std::map<std::string, Count> by_dtype;
  for (const SafetensorsFile& file : files.files) {
    int64_t bytes = file.header().data_begin;
    for (const auto& [name, tensor] : file.header().tensors) {
      Count& count = by_dtype[tensor.dtype];
      ++count.tensors;
      count.bytes += tensor.end - tensor.begin;
      bytes += tensor.end - tensor.begin;
    }
    absl::StrAppendFormat(
        &text, "  %s: %d tensors, %s bytes\n", std::filesystem::path(file.path()).filename().string(),
        file.header().tensors.size(), with_commas(bytes));
  }
  for (const auto& [dtype, count] : by_dtype) {
    absl::StrAppendFormat(&text, "  %s: %d tensors, %s bytes\n", dtype, count.tensors, with_commas(count.bytes));
  }
}

} // namespace

absl::StatusOr<std::string> describe_model(const std::string& folder) {
  Notes notes;
  ASSIGN_OR_RETURN(const models::ModelConfig config, read_model_config(folder, {}, &notes));
  std::string text = absl::StrCat("model folder ", folder, "\n");
  append_architecture(text, config);
  append_shapes(text, config);
  const absl::StatusOr<ModelFiles> files = open_model_files(folder);
  if (absl::IsNotFound(files.status()) &&
      !std::filesystem::exists(std::filesystem::path(folder) / "model.safetensors.index.json")) {
    absl::StrAppend(&text, "  no weights: ", files.status().message(), "\n");
  } else if (!files.ok()) {
    return files.status();
  } else {
    RETURN_IF_ERROR(open_weights(folder, config, &notes).status());
    append_files(text, *files);
  }
  for (const Note& note : notes) {
    absl::StrAppend(&text, note.is_warning ? "  warning: " : "  note: ", note.text, "\n");
  }
  const std::vector<std::string> tokenizer = tokenizer_files(folder);
  absl::StrAppend(&text, "  tokenizer: ", tokenizer.empty() ? "none" : absl::StrJoin(tokenizer, ", "), "\n");
  return text;
}

} // namespace distill::hf
