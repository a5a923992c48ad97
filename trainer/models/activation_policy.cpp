#include "trainer/models/activation_policy.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

namespace distill::models {
namespace {

std::optional<ActivationPolicy> policy_of(std::string_view name) {
  for (const ActivationPolicy policy : kActivationPolicies) {
    if (name == policy_name(policy)) {
      return policy;
    }
  }
  return std::nullopt;
}

constexpr int64_t kMaxBlocks = 4096;

absl::StatusOr<std::vector<ActivationPolicy>> parse_list(const std::string& text) {
  std::vector<ActivationPolicy> policies;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> pieces = absl::StrSplit(part, '*');
    const auto policy = policy_of(std::string(absl::StripAsciiWhitespace(pieces[0])));
    int64_t count = 1;
    const bool counted = pieces.size() == 2 && absl::SimpleAtoi(pieces[1], &count) && count >= 1 && count <= kMaxBlocks;
    if (!policy || !(pieces.size() == 1 || counted)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected auto, keep, recompute, offload, offload_input, or a list of them such as recompute*24,keep*8, "
          "found \"",
          part, "\""));
    }
    policies.insert(policies.end(), static_cast<size_t>(count), *policy);
  }
  return policies;
}

} // namespace

const char* policy_name(ActivationPolicy policy) {
  constexpr const char* kNames[] = {"keep", "recompute", "offload", "offload_input"};
  return kNames[static_cast<size_t>(policy)];
}

absl::StatusOr<std::vector<ActivationPolicy>> parse_policies(const std::string& text, int64_t blocks) {
  if (const auto all = policy_of(text)) {
    return std::vector<ActivationPolicy>(static_cast<size_t>(blocks), *all);
  }
  auto policies = parse_list(text);
  if (policies.ok() && static_cast<int64_t>(policies->size()) != blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "memory.activation: expected policies for the student's %d blocks, found %d in \"%s\"", blocks,
        policies->size(), text));
  }
  return policies;
}

absl::Status check_policies(const std::string& text) {
  return parse_list(text).status();
}

std::string policies_text(const std::vector<ActivationPolicy>& policies) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < policies.size();) {
    size_t end = i;
    while (end < policies.size() && policies[end] == policies[i]) {
      ++end;
    }
    runs.push_back(end - i == 1 ? policy_name(policies[i]) : absl::StrCat(policy_name(policies[i]), "*", end - i));
    i = end;
  }
  return runs.size() == 1 ? policy_name(policies[0]) : absl::StrJoin(runs, ",");
}

} // namespace distill::models
