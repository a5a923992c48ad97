#pragma once

#include <string>
#include <string_view>

// The program's log: standard error and, once a run folder exists, its log.txt. One line a message.
namespace distill::metrics {

// Also writes to `path` from now on (appends).
void open_log_file(const std::string& path);

// Stands before every message from now on: which rank of many this is. Call it before threads log.
void set_log_prefix(std::string prefix);

void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);
// What all ranks find alike: the one without a prefix says it.
void log_warning_once(std::string_view message);

// Into the log file alone, for what standard output shows already.
void log_to_file(std::string_view message);

} // namespace distill::metrics
