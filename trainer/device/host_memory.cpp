#include "trainer/device/host_memory.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace distill::device {
namespace {

// The value of a line "Key:   123 kB" in bytes; nullopt: there is no such line.
std::optional<int64_t> read_kib_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  return std::nullopt;
}

// The number in a file of one line; nullopt for "max", or where there is no such file.
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// The value of a line "key 123"; 0 where there is none.
int64_t read_statistic(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  int64_t value = 0;
  for (std::string name; file >> name >> value;) {
    if (name == key) {
      return value;
    }
  }
  return 0;
}

// The bytes that the control group, version 2 or 1, still allows; nullopt: it sets no limit.
std::optional<int64_t> group_available() {
  constexpr std::array<const char*, 4> kFiles[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}};
  for (const auto& [limit_file, usage_file, statistics_file, cache_key] : kFiles) {
    const int64_t reclaimable = read_statistic(statistics_file, cache_key); // pages of files read once
    const auto limit = read_number(limit_file);
    const auto usage = read_number(usage_file);
    if (limit && usage) {
      return *limit - *usage + reclaimable;
    }
  }
  return std::nullopt;
}

} // namespace

int64_t host_memory_bytes() {
  return read_kib_field("/proc/meminfo", "MemTotal").value_or(0);
}

int64_t available_host_bytes() {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  return std::min(
      read_kib_field("/proc/meminfo", "MemAvailable").value_or(kUnknown), group_available().value_or(kUnknown));
}

int64_t peak_resident_bytes() {
  return read_kib_field("/proc/self/status", "VmHWM").value_or(0);
}

} // namespace distill::device
