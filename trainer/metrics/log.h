#pragma once

#include <string>
#include <string_view>

// The program's log, one line for each message: standard error, and log.txt of the run folder once it is open.
namespace distill::metrics {

// Appends all further messages to the file `path`, too.
void open_log_file(const std::string& path);

// Sets the prefix of all further messages, which names the rank. Rank 0 has none. To be called before other threads
// log.
void set_log_prefix(std::string prefix);

void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);
// Logs a warning that is the same on all ranks: only the rank without a prefix, rank 0, writes it.
void log_warning_rank0(std::string_view message);

// The file for what a reader of the log needs only to debug this rank: stack traces.
void set_trace_file(std::string path);
// Appends a message and the stack trace that belongs to it. Returns the file's name; empty: nothing was written, since
// there is no trace, no file is set or its folder does not exist.
std::string write_trace(std::string_view message, std::string_view trace);

// Writes to the log file alone, for lines that standard output shows already.
void log_to_file(std::string_view message);

} // namespace distill::metrics
