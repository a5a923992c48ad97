#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// The abilities of a terminal. The environment decides: TERM, NO_COLOR, CLICOLOR_FORCE, COLUMNS.
namespace distill::metrics {

// Tells whether lines of the file descriptor can be rewritten in place: it is a terminal that interprets escape
// sequences, which one with TERM=dumb or without TERM does not.
bool rewrites_lines(int fd);

// Tells whether text for the file descriptor has colour: never with a NO_COLOR that is not empty; always with a
// CLICOLOR_FORCE that is neither empty nor 0; else if lines can be rewritten.
bool shows_colour(int fd);

// The terminal's width at this moment; where it has none, COLUMNS, or else 80. 0: not a terminal.
int64_t terminal_columns(int fd);

enum class Colour {
  kNone,
  kBar,
  kWarning
};
// `text` between the escape sequences of a colour.
std::string coloured(std::string_view text, Colour colour);

// Returns to the start of the line and erases it.
inline constexpr const char* kEraseLine = "\r\033[K";

} // namespace distill::metrics
