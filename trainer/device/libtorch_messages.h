#pragma once

#include <exception>
#include <functional>
#include <string>

// The messages of libtorch to the user, without stack traces, which are kept for the log.
namespace distill::device {

// Call this once, before other threads exist. From then on the text of libtorch's exceptions has no stack trace,
// wherever it is printed, and newest_trace() has it; libtorch's own log shows errors alone (its warnings about
// connections repeat the exceptions), unless TORCH_CPP_LOG_LEVEL asks for another level; and its warnings to users are
// given to `warn`. The thread that meets a warning calls `warn`.
void prepare_libtorch_messages(std::function<void(const std::string&)> warn);

// The message of an exception, without a stack trace.
std::string error_text(const std::exception& error);

// The stack trace, with the names of functions, of libtorch's exception that was made last in this process; empty:
// there was none.
std::string newest_trace();

} // namespace distill::device
