#include "trainer/hf/text_config.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <filesystem>
#include <vector>

#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/hf/config_keys.h"
#include "trainer/hf/key_reader.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kText = "text_config";
constexpr const char* kTied = "tie_word_embeddings";
constexpr int64_t kMaxConfigBytes = 8 << 20;

// Keys of a multimodal config.json that say nothing about its text model: the other parts, how their outputs become
// embeddings of the text model, and the tokens that these stand for.
constexpr const char* kOtherParts[] = {
    "vision_config",
    "language_model_only",
    "audio_config",
    "projector_hidden_act",
    "multimodal_projector_bias",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    "spatial_merge_size",
    "image_seq_length",
    "mm_tokens_per_image",
    "vision_soft_tokens_per_image",
    "ignore_index",
    "image_token_index",
    "image_token_id",
    "video_token_index",
    "video_token_id",
    "audio_token_index",
    "audio_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "boi_token_index",
    "boi_token_id",
    "eoi_token_index",
    "eoi_token_id",
    "boa_token_index",
    "boa_token_id",
    "eoa_token_index",
    "eoa_token_id"};

// The value of tie_word_embeddings; `absent` where there is none, or no boolean.
bool tied_key(const Json& config, bool absent) {
  const Json* value = KeyReader::take(config, kTied);
  return value != nullptr && value->is_boolean() ? value->get<bool>() : absent;
}

// The value of dtype, in transformers 5's spelling or in the older one; null: neither is there.
const Json* dtype_key(const Json& config) {
  const Json* dtype = KeyReader::take(config, "dtype");
  return dtype ? dtype : KeyReader::take(config, "torch_dtype");
}

// Gives a text_config without model_type that of the whole model's class, and other absent keys their defaults.
// `filled`: receives the latter as "key value".
void fill_defaults(Json& text, const MultimodalFamily& whole, std::vector<std::string>* filled) {
  if (KeyReader::take(text, "model_type") == nullptr) {
    text["model_type"] = whole.text_type;
  }
  const Family* family = text["model_type"].is_string() ? find_family(text["model_type"].get<std::string>()) : nullptr;
  if (family == nullptr) {
    return;
  }
  for (const char* object : {family->part_defaults, family->defaults}) {
    const Json defaults = Json::parse(object);
    for (const auto& [key, value] : defaults.items()) {
      if (!text.contains(key)) {
        text[key] = value;
        if (filled != nullptr && !value.is_null()) {
          filled->push_back(absl::StrCat(key, " ", value.dump()));
        }
      }
    }
  }
}

class WholeReader : private KeyReader {
 public:
  using KeyReader::KeyReader;

  absl::StatusOr<TextConfig> read(
      const std::string& source, const MultimodalFamily& whole, const absl::flat_hash_set<std::string>& ignored) {
    TextConfig text{{}, absl::StrCat(source, ": ", kText)};
    const Json* part = take(kText);
    if (part == nullptr || !part->is_object()) {
      complain(
          kText, ": an object with the keys of the text model is expected, found ",
          part ? KeyReader::text(*part) : "none");
    } else {
      text.json = *part;
      std::vector<std::string> filled;
      fill_defaults(text.json, whole, &filled);
      note_reading(text.json, filled);
      read_tied(text.json, whole);
      read_dtype(text.json);
    }
    for (const char* key : kOtherParts) {
      take(key);
    }
    refuse_other_keys(*this, ignored);
    RETURN_IF_ERROR(problems().status(absl::StatusCode::kInvalidArgument));
    return text;
  }

 private:
  void note_reading(const Json& text, const std::vector<std::string>& filled) {
    inform(
        "of this ", json()["model_type"].get<std::string>(), " model, the text model is read (", kText, ", ",
        KeyReader::text(text["model_type"]), ")",
        filled.empty()
            ? ""
            : absl::StrCat(
                  "; keys that it lacks have the defaults of transformers' class: ", absl::StrJoin(filled, ", ")));
  }

  // transformers ties by the key of the whole model, vLLM by that of text_config; where either of them says so, the
  // tensors decide in the end (stored_model.h).
  void read_tied(Json& text, const MultimodalFamily& whole) {
    const bool of_whole = boolean(kTied, whole.tied_by_default);
    const Json* of_text = take(text, kTied);
    if (of_text == nullptr || of_text->is_boolean()) { // else the reader of the text complains
      text[kTied] = of_whole || tied_key(text, false);
    }
  }

  void read_dtype(Json& text) {
    const Json* of_whole = dtype_key(json());
    const Json* of_text = dtype_key(text);
    if (of_whole == nullptr) {
      return;
    }
    if (of_text != nullptr && *of_text != *of_whole) {
      note(
          "dtype ", KeyReader::text(*of_whole), " is used, as by transformers; that of ", kText, ", ",
          KeyReader::text(*of_text), ", is not");
    }
    const Json dtype = *of_whole;
    text.erase("torch_dtype");
    text["dtype"] = dtype;
  }
};

} // namespace

absl::StatusOr<Json> parse_config_json(std::string_view text, const std::string& source) {
  ASSIGN_OR_RETURN(Json json, base::parse_json(text, source, /*max_depth=*/16));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": a JSON object is expected, found ", json.type_name()));
  }
  return json;
}

absl::StatusOr<Json> read_config_json(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(path, kMaxConfigBytes));
  return parse_config_json(text, path);
}

const MultimodalFamily* multimodal_family(const Json& config) {
  const Json* type = KeyReader::take(config, "model_type");
  return type != nullptr && type->is_string() ? find_multimodal_family(type->get<std::string>()) : nullptr;
}

bool is_multimodal_folder(const std::string& folder) {
  const absl::StatusOr<Json> config = read_config_json(folder);
  return config.ok() && multimodal_family(*config) != nullptr;
}

absl::StatusOr<TextConfig> text_config(
    Json config, const std::string& source, const absl::flat_hash_set<std::string>& ignored, Notes* notes) {
  const MultimodalFamily* whole = multimodal_family(config);
  if (whole == nullptr && config.contains(kText)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source, ": model_type: ", multimodal_family_names(), " is expected where the file has a ", kText, ", found ",
        KeyReader::text(config.value("model_type", Json()))));
  }
  if (whole == nullptr) {
    return TextConfig{std::move(config), source};
  }
  return WholeReader(std::move(config), source, notes).read(source, *whole, ignored);
}

Json text_keys(const Json& config) {
  const MultimodalFamily* whole = multimodal_family(config);
  if (whole == nullptr) {
    return config;
  }
  const Json* part = KeyReader::take(config, kText);
  Json text = part != nullptr && part->is_object() ? *part : Json::object();
  fill_defaults(text, *whole, /*filled=*/nullptr);
  return text;
}

void set_tied(Json& config, bool tied) {
  const MultimodalFamily* whole = multimodal_family(config);
  if (tied_key(config, whole != nullptr && whole->tied_by_default) != tied) {
    config[kTied] = tied;
  }
  if (whole != nullptr && tied_key(text_keys(config), false) != tied) {
    config[kText][kTied] = tied;
  }
}

void set_text_dtype(Json& config, const std::string& dtype) {
  const auto set = [&](Json& keys, bool always) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (keys.contains(key)) {
        keys[key] = dtype;
      }
    }
    // transformers 5 writes dtype; transformers 4 wrote torch_dtype, which older readers need.
    if (always && !keys.contains("dtype")) {
      keys["torch_dtype"] = dtype;
    }
  };
  set(config, /*always=*/true);
  if (multimodal_family(config) != nullptr) {
    set(config[kText], /*always=*/false);
  }
}

} // namespace distill::hf
