#include "trainer/config/numbers.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <algorithm>
#include <cmath>

namespace distill::config {

namespace {

// A parsed decimal number: value = sign digits * 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits; // without leading zeros
  int64_t exponent = 0;
};

bool is_digit(char c) {
  return absl::ascii_isdigit(static_cast<unsigned char>(c));
}

// [+-] digits [. digits] [e [+-] digits], with underscores between digits.
std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal out;
  size_t i = 0;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) {
    out.negative = text[i++] == '-';
  }
  bool seen_digit = false;
  bool in_fraction = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (is_digit(c)) {
      seen_digit = true;
      out.digits += c;
      out.exponent -= in_fraction ? 1 : 0;
    } else if (c == '.' && !in_fraction) {
      in_fraction = true;
    } else if (c == '_' && i > 0 && is_digit(text[i - 1]) && i + 1 < text.size() && is_digit(text[i + 1])) {
      continue;
    } else {
      break;
    }
  }
  if (!seen_digit) {
    return std::nullopt;
  }
  if (i < text.size()) {
    int64_t exponent = 0;
    std::string_view rest = text.substr(i + 1);
    if ((text[i] != 'e' && text[i] != 'E') || rest.empty()) {
      return std::nullopt;
    }
    const bool negative = rest[0] == '-';
    rest.remove_prefix(rest[0] == '-' || rest[0] == '+' ? 1 : 0);
    if (rest.empty()) {
      return std::nullopt;
    }
    for (const char c : rest) {
      if (!is_digit(c)) {
        return std::nullopt;
      }
      exponent = std::min<int64_t>(exponent * 10 + (c - '0'), 1'000'000);
    }
    out.exponent += negative ? -exponent : exponent;
  }
  out.digits.erase(0, std::min(out.digits.find_first_not_of('0'), out.digits.size()));
  return out;
}

std::string describe_not_a_number(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  std::string_view bare = lower;
  bare.remove_prefix(!bare.empty() && (bare[0] == '-' || bare[0] == '+') ? 1 : 0);
  bare.remove_prefix(!bare.empty() && bare[0] == '.' ? 1 : 0);
  if (bare == "nan" || bare == "inf" || bare == "infinity") {
    return "not a finite number";
  }
  if (lower == "true" || lower == "false") {
    return "a boolean";
  }
  return "text";
}

} // namespace

std::optional<int64_t> parse_integer(std::string_view text, std::string* why) {
  std::optional<Decimal> number = parse_decimal(text);
  if (!number) {
    *why = describe_not_a_number(text);
    return std::nullopt;
  }
  std::string& digits = number->digits;
  while (number->exponent < 0 && !digits.empty() && digits.back() == '0') {
    digits.pop_back();
    ++number->exponent;
  }
  if (digits.empty()) {
    return 0;
  }
  if (number->exponent < 0) {
    *why = "a fraction";
    return std::nullopt;
  }
  int64_t value = 0;
  if (number->exponent <= 20) {
    digits.append(static_cast<size_t>(number->exponent), '0');
    if (absl::SimpleAtoi((number->negative ? "-" : "") + digits, &value)) {
      return value;
    }
  }
  *why = "a number beyond 64 bits";
  return std::nullopt;
}

std::optional<double> parse_real(std::string_view text, std::string* why) {
  if (!parse_decimal(text)) {
    *why = describe_not_a_number(text);
    return std::nullopt;
  }
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  double value = 0;
  if (!absl::SimpleAtod(plain, &value) || !std::isfinite(value)) {
    *why = "a number beyond double precision";
    return std::nullopt;
  }
  return value;
}

} // namespace distill::config
