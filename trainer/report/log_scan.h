#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace distill::report {

// The messages of a run's log.txt other than the lines of its steps.
struct LogScan {
  struct Message {
    std::string time; // local time of the machine that wrote it
    char level = 'W'; // or E, or I of a resumption
    std::string text;
    int64_t step = 0; // the step that the message names at its begin, else the last one that was logged before it
  };
  bool found = false; // whether there is a log
  std::string first_time, last_time;
  std::string last_line; // without its time
  std::string device; // of the start report
  std::vector<Message> messages; // warnings, errors and resumptions, in order, at most kMostMessages
  int64_t left_out = 0;
};
inline constexpr size_t kMostMessages = 2000;

// InvalidArgument: a file that cannot be read.
absl::StatusOr<LogScan> scan_log(const std::string& path);

} // namespace distill::report
