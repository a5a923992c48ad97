#include "trainer/config/activation.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

namespace distill::config {

namespace {

using models::ActivationPolicy;
using Policies = std::vector<ActivationPolicy>;

constexpr char kAutomatic[] = "auto";
constexpr size_t kMaxBlocks = 4096;

// "recompute*24,keep*8"; nullopt: not such a list, or one of more than kMaxBlocks.
std::optional<Policies> parse_list(const std::string& text) {
  Policies policies;
  for (const std::string& run : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> parts = absl::StrSplit(run, '*');
    const auto policy = base::enum_named<ActivationPolicy>(std::string(absl::StripAsciiWhitespace(parts[0])));
    size_t count = 1;
    const bool counted = parts.size() == 1 || (parts.size() == 2 && absl::SimpleAtoi(parts[1], &count) && count >= 1);
    if (!policy || !counted || count > kMaxBlocks - policies.size()) {
      return std::nullopt;
    }
    policies.insert(policies.end(), count, *policy);
  }
  return policies;
}

} // namespace

std::string activation_syntax() {
  return absl::StrCat(
      kAutomatic, ", ", absl::StrJoin(enum_names(ActivationPolicy{}), ", "),
      ", or a list of them such as recompute*24,keep*8");
}

std::optional<Activation> parse_activation(const std::string& text) {
  if (text == kAutomatic) {
    return AutomaticPolicies{};
  }
  if (const auto policy = base::enum_named<ActivationPolicy>(text)) {
    return *policy;
  }
  return parse_list(text);
}

std::string activation_text(const Activation& activation) {
  if (std::holds_alternative<AutomaticPolicies>(activation)) {
    return kAutomatic;
  }
  if (const auto* policy = std::get_if<ActivationPolicy>(&activation)) {
    return base::enum_name(*policy);
  }
  const auto& policies = std::get<Policies>(activation);
  const std::string text = models::policies_text(policies);
  // The name alone would be the policy of any number of blocks.
  return base::enum_named<ActivationPolicy>(text) ? absl::StrCat(text, "*", policies.size()) : text;
}

absl::StatusOr<std::vector<ActivationPolicy>> policies_of_blocks(const Activation& activation, int64_t blocks) {
  if (std::holds_alternative<AutomaticPolicies>(activation)) {
    return Policies{};
  }
  if (const auto* policy = std::get_if<ActivationPolicy>(&activation)) {
    return Policies(static_cast<size_t>(blocks), *policy);
  }
  const auto& policies = std::get<Policies>(activation);
  if (static_cast<int64_t>(policies.size()) != blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "memory.activation: expected policies for the student's %d blocks, found %d in \"%s\"", blocks, policies.size(),
        activation_text(activation)));
  }
  return policies;
}

} // namespace distill::config
