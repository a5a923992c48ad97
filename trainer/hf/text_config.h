#pragma once

#include <absl/container/flat_hash_set.h>
#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "trainer/hf/families.h"
#include "trainer/hf/notes.h"

// The part of a config.json that describes the text model: the whole of it, or the text_config of a multimodal one.
namespace distill::hf {

// Parses a config.json, or that of a folder. Errors name the file.
absl::StatusOr<nlohmann::ordered_json> parse_config_json(std::string_view text, const std::string& source);
absl::StatusOr<nlohmann::ordered_json> read_config_json(const std::string& folder);

// The row of a config.json's model_type; null: it does not describe a multimodal model that is known.
const MultimodalFamily* multimodal_family(const nlohmann::ordered_json& config);
// Tells whether a folder's config.json describes a multimodal model. False also where it cannot be read.
bool is_multimodal_folder(const std::string& folder);

struct TextConfig {
  nlohmann::ordered_json json; // as the config.json of the text model alone would be
  std::string source; // the place of these keys, with which errors and notes begin
};

// Takes the keys of the text model out of a config.json, as transformers' class of the whole model reads them: a key
// that text_config lacks has the default of the text's class, and dtype and tie_word_embeddings are those of the whole.
// InvalidArgument: text_config is no object or that of an unknown kind of model, or the whole has keys beside those of
// its parts that are unknown and not `ignored`, or whose values are not supported.
absl::StatusOr<TextConfig> text_config(
    nlohmann::ordered_json config, const std::string& source, const absl::flat_hash_set<std::string>& ignored,
    Notes* notes);

// The keys of the text model alone, without any check: those of text_config with the defaults of its class, or all of
// `config` where that describes a text model alone.
nlohmann::ordered_json text_keys(const nlohmann::ordered_json& config);

// Makes the config.json say that the model is tied or not, and in which dtype its text is stored, for readers of the
// whole and for readers of text_config. Keys that say so already, and the other parts, stay as they are.
void set_tied(nlohmann::ordered_json& config, bool tied);
void set_text_dtype(nlohmann::ordered_json& config, const std::string& dtype);

} // namespace distill::hf
