#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/hf/key_reader.h"
#include "trainer/models/model_config.h"

// The supported model families, one row each. A family that differs from the others only in what a LayerKind can
// express, and the block computes (models::check_computable), needs a row in families.cpp and nothing else.
namespace distill::hf {

// The layers that have a window, if sliding_window is a number, where config.json has no layer_types.
enum class WindowLayers {
  kNone, // no layer, whatever config.json has
  kAll, // all layers, whatever layer_types has
  kLater, // with use_sliding_window: true, those from max_window_layers on
  kSwitched, // with use_sliding_window: true, all layers
  kPattern, // all but each sliding_window_pattern-th
  kPatternThenFull, // the same, and never the last one, whatever layer_types has
  kListed, // with use_sliding_window: true, none: layer_types must list them
};

// What differs in a family's reading of RoPE's keys.
struct FamilyRope {
  double theta = 10000; // where config.json has none
  // One rope for layers without a window and one for those with it: rope_parameters has an object for each layer type,
  // rope_theta and rope_scaling are those of full_attention.
  bool by_layer_type = false;
  double sliding_theta = 10000; // of the layers with a window, where config.json has none
  const char* sliding_theta_key = nullptr; // its key beside rope_theta in older files
  bool partial = false; // partial_rotary_factor is computed
  double default_partial = 1; // where config.json has none
  bool sections = false; // positions may have three parts (mrope_*), which are equal for text
  bool proportional = false; // the type proportional is computed
  bool all_long = false; // the types su and yarn mean longrope
  bool scaled_queries = false; // llama_4_scaling_beta is required
};

struct Family {
  const char* model_type;
  const char* architecture; // transformers' class name
  // The values of keys that config.json does not have, as transformers' configuration class has them. A key that is
  // null has none.
  const char* defaults = "{}";
  // The same for further keys, which a config.json of the text model alone must have and the text_config of a
  // multimodal folder may lack (text_config.h).
  const char* part_defaults = "{}";
  // Sets what differs from Llama, after the sizes were read; null: nothing does.
  void (*describe)(KeyReader&, models::ModelConfig&, models::LayerKind&) = nullptr;
  // Sets what differs from that in layers without a window, of which there are so many; null: nothing does.
  void (*describe_full)(KeyReader&, const std::vector<int64_t>& layers, models::LayerKind&) = nullptr;
  // Sets what differs from that in layers of linear_attention; null: the family has no such layers. Where config.json
  // has no layer_types, all but each full_attention_interval-th layer are.
  void (*describe_linear)(KeyReader&, models::LayerKind&) = nullptr;
  WindowLayers windows = WindowLayers::kNone;
  // Returns which layers have RoPE; null: all. `slides`: which layers have a window.
  std::vector<bool> (*rotates)(KeyReader&, bool has_window, const std::vector<bool>& slides) = nullptr;
  // Returns which of the layers have experts, where `describe` gives the layers experts; null: all.
  std::vector<bool> (*has_experts)(KeyReader&, int64_t layers) = nullptr;
  FamilyRope rope = {};
  bool experts_were_modules = false; // in transformers 4, so that peft takes names of modules for parameters
};

// A kind of model whose text model is one part of several. Its config.json has an object for each part, that of the
// text is text_config.
struct MultimodalFamily {
  const char* model_type; // of the whole folder
  const char* architecture;
  const char* text_type; // model_type of a text_config that names none
  bool tied_by_default; // tie_word_embeddings where the whole config.json has no such key
};

// Null: not supported.
const Family* find_family(std::string_view model_type);
// Null: a folder with this model_type is not multimodal, or not supported.
const MultimodalFamily* find_multimodal_family(std::string_view model_type);

// "llama, mistral, ... or qwen3", for errors.
std::string family_names();
// The same of the multimodal families whose text model is supported.
std::string multimodal_family_names();

} // namespace distill::hf
