#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace distill::config {

// Numbers as a YAML scalar writes them. On failure `why` says what the text is instead: "text", "a fraction", ....

// Decimal, with underscores between digits and with an exponent where the result is whole: 1_000_000, 1e9, 2.5e3.
std::optional<int64_t> parse_integer(std::string_view text, std::string* why);

// Decimal and finite.
std::optional<double> parse_real(std::string_view text, std::string* why);

} // namespace distill::config
