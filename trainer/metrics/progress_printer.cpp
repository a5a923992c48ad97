#include "trainer/metrics/progress_printer.h"

#include <unistd.h>

#include <cstdio>
#include <limits>

#include "trainer/metrics/status_line.h"
#include "trainer/metrics/step_line.h"

namespace distill::metrics {
namespace {

void print(const std::string& line) {
  print_above_status_line([&] {
    std::puts(line.c_str());
    std::fflush(stdout);
  });
}

std::string bar_line(const StepMetrics& record, int64_t columns, bool colour) {
  std::vector<LineField> fields = step_fields(record);
  const double done = static_cast<double>(record.step) / static_cast<double>(std::max<int64_t>(1, record.total_steps));
  fields.insert(fields.begin(), bar_field(done, columns));
  return fitting_line(fields, columns, colour);
}

} // namespace

ProgressPrinter::ProgressPrinter(config::ProgressStyle style, int64_t every)
    : colour_(shows_colour(STDOUT_FILENO)), every_(std::max<int64_t>(1, every)) {
  using config::ProgressStyle;
  bar_ = (style == ProgressStyle::kBar || style == ProgressStyle::kAuto) && rewrites_lines(STDOUT_FILENO);
  prints_ = style != ProgressStyle::kNone;
  lines_ = !bar_ && prints_;
}

ProgressPrinter::~ProgressPrinter() {
  if (bar_) {
    leave_status_line(LineOwner::kRun);
  }
}

void ProgressPrinter::step(const StepMetrics& record) {
  const bool due = record.step % every_ == 0 || record.step == record.total_steps || record.skipped || record.empty();
  if (lines_ && due) {
    print_line(record);
  }
  if (bar_) {
    show_bar(record);
  }
}

void ProgressPrinter::print_line(const StepMetrics& record) const {
  const int64_t columns = terminal_columns(STDOUT_FILENO);
  constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();
  print(fitting_line(step_fields(record), columns > 0 ? columns - 1 : kEverything, colour_));
}

void ProgressPrinter::show_bar(const StepMetrics& record) const {
  show_status_line(LineOwner::kRun, stdout, [record, colour = colour_](int64_t columns) {
    return bar_line(record, columns, colour);
  });
}

void ProgressPrinter::message(const std::string& line) {
  if (prints_) {
    print(line);
  }
}

void ProgressPrinter::result(const std::string& line) {
  print(line);
}

} // namespace distill::metrics
