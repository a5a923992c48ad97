#pragma once

#include <limits>
#include <utility>

#include "losses/option_ranges.h"
#include "trainer/config/field.h"

// Helpers with which fields.cpp and model_fields.cpp describe keys, and the limits of their values.
namespace distill::config {

inline constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMaxSteps = 1'000'000'000'000;
inline constexpr int64_t kMaxRanks = 1 << 20;
inline constexpr int64_t kMaxSlots = 1 << 12;
inline constexpr int64_t kMaxTokens = 1'000'000'000'000'000'000;
inline constexpr double kMaxEpochs = 1e9;
inline constexpr int64_t kMaxBatch = 1 << 24;
inline constexpr int64_t kMaxSeqLen = 1 << 26;
inline constexpr double kInf = std::numeric_limits<double>::infinity();
// The optimizer computes with such numbers in float32, where smaller ones are 0 and larger ones infinity.
inline constexpr double kLeast = 1e-20;
inline constexpr double kMost = 1e30;
inline constexpr double kMostGib = 1e6; // as bytes, an integer of 64 bits holds it

template <auto kSection, auto kMember>
auto& member(Config& config) {
  return config.*kSection.*kMember;
}

// A key whose member is an enumeration with names (data/base/enum_names.h).
template <auto kSection, auto kMember>
Choice one_of(std::vector<std::pair<std::string, std::string>> removed = {}) {
  using Enum = std::remove_cvref_t<decltype(std::declval<Config&>().*kSection.*kMember)>;
  constexpr auto kNames = enum_names(Enum{});
  return {
      {kNames.begin(), kNames.end()},
      [](const Config& config) { return static_cast<size_t>(config.*kSection.*kMember); },
      [](Config& config, size_t index) { config.*kSection.*kMember = static_cast<Enum>(index); },
      std::move(removed)};
}

// A key whose member is a ByBlock.
template <auto kSection, auto kMember>
BlockPolicies by_block() {
  using Policy =
      std::variant_alternative_t<1, std::remove_cvref_t<decltype(std::declval<Config&>().*kSection.*kMember)>>;
  return {
      by_block_syntax<Policy>(), by_block_example<Policy>(),
      [](const Config& config) { return by_block_text<Policy>(config.*kSection.*kMember); },
      [](Config& config, const std::string& text) {
        const auto value = parse_by_block<Policy>(text);
        if (value) {
          config.*kSection.*kMember = *value;
        }
        return value.has_value();
      }};
}

// A number of the loss's options, whose range losses/option_ranges.h has.
template <auto kSection, auto kMember>
Real real_of() {
  constexpr losses::RealRange kRange = losses::range_of(kMember);
  return {
      .value = member<kSection, kMember>,
      .min = kRange.min,
      .max = kRange.max,
      .max_excluded = kRange.max_excluded,
      .or_zero = kRange.or_zero};
}

// A softcap, whose range is that of the loss's options.
template <auto kMember>
Real softcap_of() {
  Real kind = real_of<&Config::loss, &losses::LossOptions::student_softcap>();
  kind.value = member<&Config::softcaps, kMember>;
  kind.or_auto = true;
  return kind;
}

template <auto kSection, auto kMember>
Integer integer_of() {
  constexpr losses::IntegerRange kRange = losses::range_of(kMember);
  return {member<kSection, kMember>, kRange.min, kRange.max};
}

inline const Condition kTeacherList = {
    [](const Config& c) { return !c.teachers.empty(); }, "there are teachers", "teachers"};

inline const Condition kTeacher = {
    [](const Config& c) { return c.has_teacher(); }, "there is a teacher", "teacher.path"};

} // namespace distill::config
