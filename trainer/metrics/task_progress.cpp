#include "trainer/metrics/task_progress.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "trainer/metrics/line_fields.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/status_line.h"

namespace distill::metrics {
namespace {

constexpr std::chrono::seconds kSilence{2}, kBetweenLines{10};
constexpr std::chrono::milliseconds kBetweenBars{200};

std::string count_text(int64_t done, int64_t total, const std::string& unit) {
  return unit == "bytes"
      ? absl::StrFormat("%.2f of %.2f GB", 1e-9 * static_cast<double>(done), 1e-9 * static_cast<double>(total))
      : absl::StrFormat("%d/%d %s", done, total, unit);
}

// The stream on which a bar can stand: standard error, which holds no results, or else standard output.
std::FILE* bar_stream(config::ProgressStyle style) {
  if (style == config::ProgressStyle::kLines) {
    return nullptr;
  }
  return rewrites_lines(STDERR_FILENO) ? stderr : rewrites_lines(STDOUT_FILENO) ? stdout : nullptr;
}

std::vector<LineField> task_fields(
    const std::string& name, int64_t done, int64_t total, const std::string& unit, double rate) {
  const double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
  std::vector<LineField> fields{
      {"name", 1, name},
      {"percent", 2, absl::StrFormat("%.0f%%", 100 * fraction)},
      {"count", 5, count_text(done, total, unit)}};
  if (rate > 0) {
    const double left = static_cast<double>(total - done) / rate;
    fields.push_back({"eta", 3, absl::StrCat("eta ", format_duration(left)), brief_duration(left)});
  }
  return fields;
}

} // namespace

std::string task_line(
    const std::string& name, int64_t done, int64_t total, const std::string& unit, double rate, int64_t columns,
    bool colour) {
  std::vector<LineField> fields = task_fields(name, done, total, unit, rate);
  const double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
  fields.insert(fields.begin(), bar_field(fraction, columns));
  return fitting_line(fields, columns, colour);
}

TaskProgress::TaskProgress(std::string name, int64_t total, std::string unit, config::ProgressStyle style)
    : name_(std::move(name)),
      unit_(std::move(unit)),
      total_(total),
      stream_(bar_stream(style)),
      silent_(style == config::ProgressStyle::kNone),
      began_(Clock::now()),
      next_(began_ + (stream_ != nullptr ? kSilence : kBetweenLines)) {}

TaskProgress::~TaskProgress() {
  if (shown_) {
    erase_status_line(LineOwner::kTask);
  }
}

void TaskProgress::update(int64_t done) {
  done_ = std::min(done, total_);
  first_ = first_.value_or(done_);
  const Clock::time_point now = Clock::now();
  if (silent_ || now < next_) {
    return;
  }
  next_ = now + (stream_ != nullptr ? Clock::duration(kBetweenBars) : Clock::duration(kBetweenLines));
  const double rate = static_cast<double>(done_ - *first_) / std::chrono::duration<double>(now - began_).count();
  if (stream_ == nullptr) {
    log_info(whole_line(task_fields(name_, done_, total_, unit_, rate)));
    return;
  }
  shown_ = true;
  show_status_line(
      LineOwner::kTask, stream_,
      [name = name_, done = done_, total = total_, unit = unit_, rate, colour = shows_colour(fileno(stream_))](
          int64_t columns) { return task_line(name, done, total, unit, rate, columns, colour); });
}

} // namespace distill::metrics
