#include "trainer/metrics/progress_printer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>

namespace distill::metrics {
namespace {

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 120;
}

} // namespace

ProgressPrinter::ProgressPrinter(config::ProgressStyle style, int64_t every) : every_(std::max<int64_t>(1, every)) {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  using config::ProgressStyle;
  bar_ = style == ProgressStyle::kBar || (style == ProgressStyle::kAuto && terminal);
  lines_ = style == ProgressStyle::kLines || (style == ProgressStyle::kAuto && !terminal);
}

ProgressPrinter::~ProgressPrinter() {
  if (bar_shown_) {
    std::fputs("\n", stdout);
    std::fflush(stdout);
  }
}

void ProgressPrinter::step(const StepRecord& record) {
  const bool due = record.step % every_ == 0 || record.step == record.total_steps || record.skipped;
  if (lines_ && due) {
    std::puts(step_line(record).c_str());
    std::fflush(stdout);
  }
  if (bar_) {
    constexpr int64_t kCells = 20;
    const int64_t filled = record.total_steps > 0 ? kCells * record.step / record.total_steps : 0;
    std::string line = "[" + std::string(filled, '#') + std::string(kCells - filled, '.') + "] " + step_line(record);
    line.resize(std::min(line.size(), terminal_columns() - 1));
    std::printf("\r\033[K%s", line.c_str());
    std::fflush(stdout);
    bar_shown_ = true;
  }
}

void ProgressPrinter::message(const std::string& line) {
  clear_bar();
  std::puts(line.c_str());
  std::fflush(stdout);
}

void ProgressPrinter::clear_bar() {
  if (bar_shown_) {
    std::fputs("\r\033[K", stdout);
    bar_shown_ = false;
  }
}

} // namespace distill::metrics
