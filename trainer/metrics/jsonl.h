#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdio>
#include <memory>
#include <string>

namespace distill::metrics {

// A JSON-lines file. Every line is written whole and flushed, so that a killed run leaves at most one torn line.
class JsonLines {
 public:
  // Opens for appending. Lines of steps beyond `last_step` and a torn last line are dropped first, so that a resumed
  // run holds every step once.
  static absl::StatusOr<JsonLines> open(const std::string& path, int64_t last_step);

  absl::Status append(const std::string& line);

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      std::fclose(file);
    }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

} // namespace distill::metrics
