#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/models/layer_kind.h"

// The supported model families, one row each. A family that differs from the others only in what a LayerKind can
// express, and the block computes (models::check_computable), needs a row in families.cpp and nothing else.
namespace distill::hf {

// The meaning of sliding_window in a config.json. In a family that has windows, an absent key means a window of
// kDefaultWindow tokens and null means none; layer_types, if it is given, lists the layers that have them.
enum class SlidingWindow {
  kIgnored, // no layer has a window
  kRefused, // its layers with and without a window differ in more than the window
  kAlways, // all layers
  kSwitched, // with use_sliding_window: true, the layers from max_window_layers on
};
inline constexpr int64_t kDefaultWindow = 4096;
inline constexpr int64_t kDefaultWindowLayers = 28; // max_window_layers where the key is absent

struct Family {
  const char* model_type;
  const char* architecture; // transformers' class name
  void (*describe)(models::LayerKind&); // sets what differs from Llama
  std::optional<int64_t> default_head_dim; // where config.json has none; nullopt: hidden_size / num_attention_heads
  std::optional<int64_t> default_kv_heads; // where the key is absent; nullopt, or a key that is null: all heads
  SlidingWindow window = SlidingWindow::kIgnored;
};

// Null: not supported.
const Family* find_family(std::string_view model_type);

// "llama, mistral, ... or qwen3", for errors.
std::string family_names();

} // namespace distill::hf
