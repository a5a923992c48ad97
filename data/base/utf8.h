#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace distill::base {

// One step through bytes that may be UTF-8.
struct Utf8Step {
  size_t bytes = 0; // at least 1
  char32_t character = 0; // U+FFFD: the bytes are not UTF-8, or are this character
  bool valid = false; // false: `bytes` is the longest part that could begin a character (Unicode's "maximal subpart")
};

// The step at `at`, which is below text.size().
Utf8Step utf8_step(std::string_view text, size_t at);

bool is_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t character);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD"; // U+FFFD

} // namespace distill::base
