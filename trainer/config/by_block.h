#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trainer/models/activation_policy.h"
#include "trainer/models/state_place.h"

// Values of keys that decide something for each decoder block of the student: memory.activation (which tensors it saves
// for its backward pass) and memory.optimizer (where its optimizer state is stored).
namespace distill::config {

// The memory plan chooses for each block.
struct Automatic {
  bool operator==(const Automatic&) const = default;
};

// `auto`, one policy for all blocks, or a policy for each block in forward order.
template <base::NamedEnum Policy>
using ByBlock = std::variant<Automatic, Policy, std::vector<Policy>>;

// The functions below are instantiated for models::ActivationPolicy and models::StatePlace.

// A list of policies, for errors: "recompute*24,keep*8".
template <base::NamedEnum Policy>
std::string by_block_example();

// The syntax that parse_by_block accepts, for errors: "auto, keep, ..., or a list of them such as recompute*24,keep*8".
template <base::NamedEnum Policy>
std::string by_block_syntax();

// nullopt: the text is none of these. In a list, "name" is "name*1".
template <base::NamedEnum Policy>
std::optional<ByBlock<Policy>> parse_by_block(const std::string& text);

// The shortest text that reads back equal.
template <base::NamedEnum Policy>
std::string by_block_text(const ByBlock<Policy>& value);

// Whether the value gives the policy to a block; false for Automatic.
template <base::NamedEnum Policy>
bool gives(const ByBlock<Policy>& value, Policy policy);

// The policy of each of the student's blocks; empty for Automatic. InvalidArgument: a list that has not one policy for
// each of the `blocks` blocks; the message begins with `key`.
template <base::NamedEnum Policy>
absl::StatusOr<std::vector<Policy>> policies_of_blocks(
    const ByBlock<Policy>& value, int64_t blocks, const std::string& key);

} // namespace distill::config
