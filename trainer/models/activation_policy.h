#pragma once

#include "trainer/models/policies_text.h"

namespace distill::models {

// The choice of the tensors that one block saves for its backward pass, and of the memory in which they are stored
// until then.
enum class ActivationPolicy {
  kKeep, // everything that the backward pass reads, on the device
  kRecompute, // the block's input on the device; its forward pass runs again
  kOffload, // everything, on the host
  kOffloadInput, // the input, on the host; the forward pass runs again
};
constexpr auto enum_names(ActivationPolicy) {
  return base::names_of<ActivationPolicy>("keep", "recompute", "offload", "offload_input");
}

constexpr bool keeps_input_only(ActivationPolicy policy) {
  return policy == ActivationPolicy::kRecompute || policy == ActivationPolicy::kOffloadInput;
}
constexpr bool is_offloaded(ActivationPolicy policy) {
  return policy == ActivationPolicy::kOffload || policy == ActivationPolicy::kOffloadInput;
}

} // namespace distill::models
