#include "trainer/metrics/host_memory.h"

#include <fstream>
#include <string>

namespace distill::metrics {
namespace {

// The value of a line "Key:   123 kB", in bytes; 0 where there is none.
int64_t read_kib_field(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1)) * 1024;
    }
  }
  return 0;
}

} // namespace

int64_t peak_resident_bytes() {
  return read_kib_field("/proc/self/status", "VmHWM");
}

int64_t host_memory_bytes() {
  return read_kib_field("/proc/meminfo", "MemTotal");
}

} // namespace distill::metrics
