#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

namespace distill::metrics {

// Which lines of an earlier run stay when it is resumed.
struct KeptSteps {
  int64_t last_step = 0; // steps up to here
  int64_t last_evaluation = -1; // evaluations after steps up to here
};

// A JSON-lines file. Every line is written whole and flushed, so that a killed run leaves at most one torn line.
class JsonLines {
 public:
  // Opens for appending. Lines that are not kept and a torn last line are dropped first, so that a resumed run holds
  // every step and every evaluation once.
  static absl::StatusOr<JsonLines> open(const std::string& path, const KeptSteps& kept);

  absl::Status append(const std::string& line);
  // What has been appended is on the disk when this returns ok. May run on another thread than append().
  absl::Status sync() const;

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
