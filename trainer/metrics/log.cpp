// No torch header here: torch's include folder has a copy of fmt that clashes with the one spdlog uses.
#include "trainer/metrics/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <fstream>

#include "trainer/metrics/status_line.h"
#include "trainer/metrics/terminal.h"

namespace distill::metrics {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    sink->set_color_mode(shows_colour(STDERR_FILENO) ? spdlog::color_mode::always : spdlog::color_mode::never);
    sink->set_color(spdlog::level::info, sink->reset); // warnings and errors alone have colour
    auto made = std::make_shared<spdlog::logger>("distill", std::move(sink));
    made->set_pattern("%Y-%m-%d %H:%M:%S %^%L %v%$");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

// Writes to the log file alone; null until it is open.
std::shared_ptr<spdlog::logger>& file_logger() {
  static std::shared_ptr<spdlog::logger> instance;
  return instance;
}

std::string& message_prefix() {
  static std::string instance;
  return instance;
}

std::string& trace_file() {
  static std::string instance;
  return instance;
}

void write(spdlog::level::level_enum level, std::string_view message) {
  print_above_status_line([&] { logger().log(level, "{}{}", message_prefix(), message); });
}

} // namespace

void open_log_file(const std::string& path) {
  auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, /*truncate=*/false);
  logger().sinks().push_back(file);
  file_logger() = std::make_shared<spdlog::logger>("file", std::move(file));
  file_logger()->flush_on(spdlog::level::info);
  file_logger()->set_pattern("%Y-%m-%d %H:%M:%S %L %v");
}

void set_log_prefix(std::string prefix) {
  message_prefix() = std::move(prefix);
}

void log_info(std::string_view message) {
  write(spdlog::level::info, message);
}

void log_warning(std::string_view message) {
  write(spdlog::level::warn, message);
}

void log_warning_rank0(std::string_view message) {
  if (message_prefix().empty()) {
    log_warning(message);
  }
}

void log_error(std::string_view message) {
  write(spdlog::level::err, message);
}

void set_trace_file(std::string path) {
  trace_file() = std::move(path);
}

std::string write_trace(std::string_view message, std::string_view trace) {
  if (trace.empty() || trace_file().empty()) {
    return "";
  }
  std::ofstream file(trace_file(), std::ios::app);
  file << message << "\n" << trace << "\n";
  file.close();
  return file ? trace_file() : "";
}

void log_to_file(std::string_view message) {
  if (file_logger()) {
    file_logger()->info(message);
  }
}

} // namespace distill::metrics
