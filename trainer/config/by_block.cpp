#include "trainer/config/by_block.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <algorithm>

namespace distill::config {

namespace {

constexpr char kAutomaticText[] = "auto";
constexpr size_t kMaxBlocks = 4096;

// "recompute*24,keep*8"; nullopt: not such a list, or one of more than kMaxBlocks.
template <base::NamedEnum Policy>
std::optional<std::vector<Policy>> parse_list(const std::string& text) {
  std::vector<Policy> policies;
  for (const std::string& run : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> parts = absl::StrSplit(run, '*');
    const auto policy = base::enum_named<Policy>(std::string(absl::StripAsciiWhitespace(parts[0])));
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

template <base::NamedEnum Policy>
std::string by_block_example() {
  constexpr auto kNames = enum_names(Policy{});
  return absl::StrCat(kNames[1], "*24,", kNames[0], "*8");
}

template <base::NamedEnum Policy>
std::string by_block_syntax() {
  return absl::StrCat(
      kAutomaticText, ", ", absl::StrJoin(enum_names(Policy{}), ", "), ", or a list of them such as ",
      by_block_example<Policy>());
}

template <base::NamedEnum Policy>
std::optional<ByBlock<Policy>> parse_by_block(const std::string& text) {
  if (text == kAutomaticText) {
    return Automatic{};
  }
  if (const auto policy = base::enum_named<Policy>(text)) {
    return *policy;
  }
  return parse_list<Policy>(text);
}

template <base::NamedEnum Policy>
std::string by_block_text(const ByBlock<Policy>& value) {
  if (std::holds_alternative<Automatic>(value)) {
    return kAutomaticText;
  }
  if (const auto* policy = std::get_if<Policy>(&value)) {
    return base::enum_name(*policy);
  }
  const auto& policies = std::get<std::vector<Policy>>(value);
  const std::string text = models::policies_text(policies);
  // The name alone would be the policy of any number of blocks.
  return base::enum_named<Policy>(text) ? absl::StrCat(text, "*", policies.size()) : text;
}

template <base::NamedEnum Policy>
bool gives(const ByBlock<Policy>& value, Policy policy) {
  if (const auto* policies = std::get_if<std::vector<Policy>>(&value)) {
    return std::find(policies->begin(), policies->end(), policy) != policies->end();
  }
  return value == ByBlock<Policy>(policy);
}

template <base::NamedEnum Policy>
absl::StatusOr<std::vector<Policy>> policies_of_blocks(
    const ByBlock<Policy>& value, int64_t blocks, const std::string& key) {
  if (std::holds_alternative<Automatic>(value)) {
    return std::vector<Policy>{};
  }
  if (const auto* policy = std::get_if<Policy>(&value)) {
    return std::vector<Policy>(static_cast<size_t>(blocks), *policy);
  }
  const auto& policies = std::get<std::vector<Policy>>(value);
  if (static_cast<int64_t>(policies.size()) != blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: expected one of %s for each of the student's %d blocks, found %d in \"%s\"", key,
        absl::StrJoin(enum_names(Policy{}), ", "), blocks, policies.size(), by_block_text(value)));
  }
  return policies;
}

#define DISTILL_BY_BLOCK(Policy)                                                      \
  template std::string by_block_example<Policy>();                                    \
  template std::string by_block_syntax<Policy>();                                     \
  template std::optional<ByBlock<Policy>> parse_by_block<Policy>(const std::string&); \
  template std::string by_block_text<Policy>(const ByBlock<Policy>&);                 \
  template bool gives<Policy>(const ByBlock<Policy>&, Policy);                        \
  template absl::StatusOr<std::vector<Policy>> policies_of_blocks<Policy>(            \
      const ByBlock<Policy>&, int64_t, const std::string&)
DISTILL_BY_BLOCK(models::ActivationPolicy);
DISTILL_BY_BLOCK(models::StatePlace);
#undef DISTILL_BY_BLOCK

} // namespace distill::config
