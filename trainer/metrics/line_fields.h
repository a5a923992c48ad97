#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/metrics/terminal.h"

namespace distill::metrics {

// Fields up to this priority are always shown.
constexpr int kAlwaysShown = 4;

// A part of a line of progress, ASCII. On a terminal the fields with the lowest priorities are shown, as many as its
// width has room for.
struct LineField {
  const char* name;
  int priority;
  std::string text;
  std::string brief = {}; // what a narrow terminal shows in its place; empty: the text
  Colour colour = Colour::kNone;
};

// Makes the line of all fields in their order, without colour.
std::string whole_line(const std::vector<LineField>& fields);

// Makes the line of the fields that fit into `columns`, in their order. If those that are always shown do not fit, they
// are shown in brief; if these do not fit either, the ones with the lowest priorities are. The line is never longer
// than `columns` characters, escape sequences apart.
std::string fitting_line(const std::vector<LineField>& fields, int64_t columns, bool colour);

// "[####......]" for a fraction from 0 to 1, wider where there is room.
LineField bar_field(double fraction, int64_t columns);

// "1:02:03", "2:03"; in brief, from a day on, "4d3h".
std::string format_duration(double seconds);
std::string brief_duration(double seconds);

} // namespace distill::metrics
