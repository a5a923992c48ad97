#pragma once

#include <cstdint>
#include <optional>

namespace distill::models {

// How the tokens of causal attention (attention.h) see one another.
struct AttentionOptions {
  double scale = 1; // of the scores
  std::optional<int64_t> window; // a token attends to itself and the window - 1 tokens before it; nullopt: to all
  double softcap = 0; // of the scaled scores, cap * tanh(scores / cap); 0: none
};

} // namespace distill::models
