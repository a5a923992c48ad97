#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trainer/models/activation_policy.h"

// The value of memory.activation: which tensors each decoder block of the student saves for its backward pass.
namespace distill::config {

// The memory plan chooses the fastest mix of policies that fits.
struct AutomaticPolicies {
  bool operator==(const AutomaticPolicies&) const = default;
};

// `auto`, one policy for all blocks, or a policy for each block in forward order.
using Activation = std::variant<AutomaticPolicies, models::ActivationPolicy, std::vector<models::ActivationPolicy>>;

// The syntax that parse_activation accepts, for errors: "auto, keep, ..., or a list of them such as
// recompute*24,keep*8".
std::string activation_syntax();

// nullopt: the text is none of these. In a list, "name" is "name*1".
std::optional<Activation> parse_activation(const std::string& text);

// The shortest text that reads back equal.
std::string activation_text(const Activation& activation);

// The policy of each of the student's blocks; empty for AutomaticPolicies. InvalidArgument: a list that has not one
// policy for each of the `blocks` blocks.
absl::StatusOr<std::vector<models::ActivationPolicy>> policies_of_blocks(const Activation& activation, int64_t blocks);

} // namespace distill::config
