#include "trainer/metrics/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace distill::metrics {
namespace {

constexpr int64_t kUsualColumns = 80;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

} // namespace

bool rewrites_lines(int fd) {
  const std::string_view term = variable("TERM");
  return ::isatty(fd) == 1 && !term.empty() && term != "dumb";
}

bool shows_colour(int fd) {
  if (!variable("NO_COLOR").empty()) {
    return false;
  }
  const std::string_view force = variable("CLICOLOR_FORCE");
  return (!force.empty() && force != "0") || rewrites_lines(fd);
}

int64_t terminal_columns(int fd) {
  if (::isatty(fd) != 1) {
    return 0;
  }
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  const int64_t columns = std::atoll(std::string(variable("COLUMNS")).c_str());
  return columns > 0 ? columns : kUsualColumns;
}

std::string coloured(std::string_view text, Colour colour) {
  const char* begin = colour == Colour::kBar ? "\033[36m" : "\033[33m"; // cyan, yellow
  return colour == Colour::kNone ? std::string(text) : begin + std::string(text) + "\033[0m";
}

} // namespace distill::metrics
