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
// For warnings that are the same on all ranks: only the rank without a prefix, rank 0, logs the message.
void log_warning_rank0(std::string_view message);

// Writes to the log file alone, for lines that standard output shows already.
void log_to_file(std::string_view message);

} // namespace distill::metrics
