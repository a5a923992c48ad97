#include "trainer/report/log_scan.h"

#include <absl/strings/numbers.h>

#include <cctype>

#include "data/base/status_macros.h"
#include "trainer/report/line_reader.h"

namespace distill::report {
namespace {

constexpr size_t kTimeLength = 19; // 2026-11-22 16:19:23
constexpr size_t kTextAt = kTimeLength + 3; // after the level and its spaces

// Tells whether a line begins with a time and a level, as trainer/metrics/log.cpp writes them. Other lines continue the
// one before.
bool begins_message(const std::string& line) {
  return line.size() >= kTextAt && line[4] == '-' && line[10] == ' ' && line[13] == ':' && line[kTimeLength] == ' ' &&
      line[kTimeLength + 2] == ' ' && std::isdigit(static_cast<unsigned char>(line[0])) != 0;
}

// The number in "step 12/140", "step 12: " or "evaluation after step 12: "; -1: the text does not begin in this way.
int64_t named_step(std::string_view text) {
  constexpr std::string_view kWord = "step ";
  constexpr std::string_view kEvaluation = "evaluation after ";
  text.remove_prefix(text.starts_with(kEvaluation) ? kEvaluation.size() : 0);
  if (!text.starts_with(kWord)) {
    return -1;
  }
  const size_t end = text.find_first_not_of("0123456789", kWord.size());
  int64_t step = -1;
  return end != std::string_view::npos && (text[end] == '/' || text[end] == ':') &&
          absl::SimpleAtoi(std::string(text.substr(kWord.size(), end - kWord.size())), &step)
      ? step
      : -1;
}

constexpr std::string_view kResumed = "resumed from ";

bool is_kept(char level, std::string_view text) {
  return level == 'W' || level == 'E' || (level == 'I' && text.starts_with(kResumed));
}

// The step that a message names: at its begin, or "resumed from FOLDER after step 5 (10 samples)"; -1: none.
int64_t step_of_message(std::string_view text) {
  constexpr std::string_view kAfter = " after step ";
  const size_t at = text.starts_with(kResumed) ? text.rfind(kAfter) : std::string_view::npos;
  int64_t step = -1;
  if (at != std::string_view::npos) {
    const std::string_view number = text.substr(at + kAfter.size());
    return absl::SimpleAtoi(std::string(number.substr(0, number.find(' '))), &step) ? step : -1;
  }
  return named_step(text);
}

} // namespace

absl::StatusOr<LogScan> scan_log(const std::string& path) {
  constexpr std::string_view kDevice = "device: ";
  LogScan log;
  int64_t step = 0;
  const auto visit = [&](int64_t, const std::string& line) -> absl::Status {
    if (!begins_message(line)) {
      return absl::OkStatus();
    }
    const std::string_view text = std::string_view(line).substr(kTextAt);
    const char level = line[kTimeLength + 1];
    const int64_t named = step_of_message(text);
    step = named >= 0 ? named : step;
    log.last_time = line.substr(0, kTimeLength);
    log.first_time = log.first_time.empty() ? log.last_time : log.first_time;
    log.last_line = text;
    if (text.starts_with(kDevice)) {
      log.device = text.substr(kDevice.size());
    }
    if (is_kept(level, text) && log.messages.size() < kMostMessages) {
      log.messages.push_back({log.last_time, level, std::string(text), step});
    } else if (is_kept(level, text)) {
      log.left_out += 1;
    }
    return absl::OkStatus();
  };
  ASSIGN_OR_RETURN(log.found, for_each_line(path, visit));
  return log;
}

} // namespace distill::report
