#include "trainer/metrics/status_line.h"

#include <array>
#include <mutex>

#include "trainer/metrics/terminal.h"

namespace distill::metrics {
namespace {

struct Line {
  std::FILE* stream = nullptr; // null: not shown
  LineText text;
};

struct State {
  std::mutex mutex;
  std::array<Line, 2> lines; // by LineOwner
  std::FILE* drawn_on = nullptr; // null: no line stands on the terminal
};

// Never destroyed: threads may log until the process has ended.
State& state() {
  static State* const instance = new State;
  return *instance;
}

Line& line_of(State& s, LineOwner owner) {
  return s.lines[static_cast<size_t>(owner)];
}

void erase(State& s) {
  if (s.drawn_on != nullptr) {
    std::fputs(kEraseLine, s.drawn_on);
    std::fflush(s.drawn_on);
    s.drawn_on = nullptr;
  }
}

// Draws the task's line, or where there is none the run's.
void draw(State& s) {
  const Line& task = line_of(s, LineOwner::kTask);
  const Line& line = task.stream != nullptr ? task : line_of(s, LineOwner::kRun);
  if (line.stream == nullptr) {
    return;
  }
  // The text is one character shorter than the width: some terminals go on to the next line after the last column.
  const std::string text = line.text(terminal_columns(fileno(line.stream)) - 1);
  std::fprintf(line.stream, "%s%s", kEraseLine, text.c_str());
  std::fflush(line.stream);
  s.drawn_on = line.stream;
}

} // namespace

void show_status_line(LineOwner owner, std::FILE* stream, LineText text) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.drawn_on != nullptr && s.drawn_on != stream) {
    erase(s);
  }
  line_of(s, owner) = {stream, std::move(text)};
  draw(s);
}

void erase_status_line(LineOwner owner) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (line_of(s, owner).stream != nullptr) {
    line_of(s, owner) = {};
    erase(s);
    draw(s);
  }
}

void leave_status_line(LineOwner owner) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (line_of(s, owner).stream == nullptr) {
    return;
  }
  line_of(s, owner) = {};
  if (s.drawn_on != nullptr) {
    std::fputs("\n", s.drawn_on);
    std::fflush(s.drawn_on);
    s.drawn_on = nullptr;
  }
  draw(s);
}

void print_above_status_line(const std::function<void()>& print) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  erase(s);
  print();
  draw(s);
}

} // namespace distill::metrics
