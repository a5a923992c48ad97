#include "data/base/utf8.h"

namespace distill::base {

// The ranges of the second byte are those of the Unicode standard's table 3-7: no surrogates, no overlong forms,
// nothing above U+10FFFF.
Utf8Step utf8_step(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) {
    return {1, first, true};
  }
  const size_t length = first >= 0xC2 && first <= 0xDF ? 2
      : (first & 0xF0) == 0xE0                         ? 3
      : first >= 0xF0 && first <= 0xF4                 ? 4
                                                       : 0;
  if (length == 0) {
    return {1, 0xFFFD, false};
  }
  uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  char32_t character = first & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) {
      return {i, 0xFFFD, false};
    }
    character = (character << 6) | (byte(at + i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {length, character, true};
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    if (!step.valid) {
      return false;
    }
    at += step.bytes;
  }
  return true;
}

void append_utf8(std::string& text, char32_t character) {
  const auto put = [&](char32_t bits) { text += static_cast<char>(bits); };
  if (character < 0x80) {
    put(character);
  } else if (character < 0x800) {
    put(0xC0 | character >> 6);
    put(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    put(0xE0 | character >> 12);
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  } else {
    put(0xF0 | character >> 18);
    put(0x80 | (character >> 12 & 0x3F));
    put(0x80 | (character >> 6 & 0x3F));
    put(0x80 | (character & 0x3F));
  }
}

} // namespace distill::base
