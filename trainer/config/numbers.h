#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace distill::config {

// Parse the text of a YAML scalar. For other texts they return nullopt and set `why` to what the text is: "text", "a
// fraction", ....

// A whole decimal number; underscores between digits and an exponent are allowed: 1_000_000, 1e9, 2.5e3.
std::optional<int64_t> parse_integer(std::string_view text, std::string* why);

// A finite decimal number, in the same notation.
std::optional<double> parse_real(std::string_view text, std::string* why);

} // namespace distill::config
