#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

// The line at the bottom of a terminal that is rewritten in place: the bar of a run, or of a task within it. There is
// one for the process, since the program has one terminal; the log erases it before a message and draws it again after
// that. To be used from any thread.
namespace distill::metrics {

enum class LineOwner {
  kRun,
  kTask
}; // a task's line stands in the place of the run's

// Makes the line for a terminal of this many columns, escape sequences included. It is called whenever the line is
// drawn: the terminal may have another width then.
using LineText = std::function<std::string(int64_t columns)>;

// Shows the owner's line on `stream`, a terminal that rewrites lines.
void show_status_line(LineOwner owner, std::FILE* stream, LineText text);
// Erases the owner's line; the run's comes back when a task's goes.
void erase_status_line(LineOwner owner);
// Leaves the owner's line as it is, and goes on below it.
void leave_status_line(LineOwner owner);

// Calls `print`, which writes whole lines to standard output or standard error, while the line is away.
void print_above_status_line(const std::function<void()>& print);

} // namespace distill::metrics
