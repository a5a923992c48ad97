// No torch header here: torch's include folder has a copy of fmt that clashes with the one spdlog uses.
#include "trainer/metrics/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace distill::metrics {
namespace {

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("distill", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S %^%L%$ %v");
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
  logger().info("{}{}", message_prefix(), message);
}

void log_warning(std::string_view message) {
  logger().warn("{}{}", message_prefix(), message);
}

void log_warning_rank0(std::string_view message) {
  if (message_prefix().empty()) {
    log_warning(message);
  }
}

void log_error(std::string_view message) {
  logger().error("{}{}", message_prefix(), message);
}

void log_to_file(std::string_view message) {
  if (file_logger()) {
    file_logger()->info(message);
  }
}

} // namespace distill::metrics
