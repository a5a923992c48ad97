#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/models/model_config.h"

// The supported model families, one row each. A family that differs from the others only in what ModelConfig can
// express needs a row in families.cpp and nothing else.
namespace distill::hf {

// When a config.json's sliding_window applies.
enum class SlidingWindow {
  kNever, // a window is an error
  kAlways, // default 4096; null switches it off
  kSwitched, // only with use_sliding_window: true; the same default
};

struct Family {
  const char* model_type;
  const char* architecture; // transformers' class name
  void (*describe)(models::ModelConfig&); // sets what differs from Llama
  std::optional<int64_t> default_head_dim; // where config.json has none; nullopt: hidden_size / num_attention_heads
  SlidingWindow window = SlidingWindow::kNever;
};

// Null: not supported.
const Family* find_family(std::string_view model_type);

// "llama, mistral, ... or qwen3", for errors.
std::string family_names();

} // namespace distill::hf
