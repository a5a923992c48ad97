#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace distill::models {

// What one block keeps for its backward pass, and where.
enum class ActivationPolicy {
  kKeep, // everything the backward pass wants, on the device
  kRecompute, // the block's input on the device; its forward pass runs again
  kOffload, // everything, on the host
  kOffloadInput, // the input, on the host; the forward pass runs again
};
inline constexpr ActivationPolicy kActivationPolicies[] = {
    ActivationPolicy::kKeep, ActivationPolicy::kRecompute, ActivationPolicy::kOffload, ActivationPolicy::kOffloadInput};

const char* policy_name(ActivationPolicy policy); // keep | recompute | offload | offload_input

constexpr bool keeps_input_only(ActivationPolicy policy) {
  return policy == ActivationPolicy::kRecompute || policy == ActivationPolicy::kOffloadInput;
}
constexpr bool is_offloaded(ActivationPolicy policy) {
  return policy == ActivationPolicy::kOffload || policy == ActivationPolicy::kOffloadInput;
}

// A policy for each of `blocks` blocks, in forward order: one name for all of them, or runs that add up to all of them,
// "recompute*24,keep*8" ("name" is "name*1"). InvalidArgument says what was expected and found.
absl::StatusOr<std::vector<ActivationPolicy>> parse_policies(const std::string& text, int64_t blocks);

// Whether such a text can be read for some number of blocks.
absl::Status check_policies(const std::string& text);

// The shortest text that parse_policies reads back.
std::string policies_text(const std::vector<ActivationPolicy>& policies);

} // namespace distill::models
