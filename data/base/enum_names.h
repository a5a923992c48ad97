#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// Names for the values of an enumeration, as files, flags and messages spell them. They are declared next to the
// enumeration, in the order of its enumerators, which count from 0:
//
//   enum class PackingMode { kPack, kConcat };
//   constexpr auto enum_names(PackingMode) { return base::names_of<PackingMode>("pack", "concat"); }
//
// An enumerator without a name, or a name without an enumerator, does not compile.
namespace distill::base {

namespace internal {

// Compilers print a value that is no enumerator as a cast, "(PackingMode)2".
template <auto kValue>
constexpr bool is_enumerator() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const char next = text[text.rfind(')') + 1];
  return next < '0' || next > '9';
}

} // namespace internal

template <typename Enum, typename... Names>
constexpr std::array<const char*, sizeof...(Names)> names_of(Names... names) {
  constexpr size_t kCount = sizeof...(Names);
  static_assert(internal::is_enumerator<static_cast<Enum>(kCount - 1)>(), "a name has no enumerator");
  static_assert(!internal::is_enumerator<static_cast<Enum>(kCount)>(), "an enumerator has no name");
  return {names...};
}

template <typename Enum>
concept NamedEnum = requires(Enum value) {
  enum_names(value);
};

template <NamedEnum Enum>
constexpr const char* enum_name(Enum value) {
  return enum_names(value)[static_cast<size_t>(value)];
}

// The value with this name; nullopt: none has it.
template <NamedEnum Enum>
constexpr std::optional<Enum> enum_named(std::string_view name) {
  constexpr auto kNames = enum_names(Enum{});
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) {
      return static_cast<Enum>(i);
    }
  }
  return std::nullopt;
}

// The names for an error that says what was expected: "pack or concat", "auto, float32 or bfloat16".
template <NamedEnum Enum>
std::string enum_choices() {
  constexpr auto kNames = enum_names(Enum{});
  std::string text = kNames[0];
  for (size_t i = 1; i < kNames.size(); ++i) {
    text.append(i + 1 < kNames.size() ? ", " : " or ").append(kNames[i]);
  }
  return text;
}

} // namespace distill::base
