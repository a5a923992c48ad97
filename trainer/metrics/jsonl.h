#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace distill::metrics {

// Every whole line of a JSON-lines file that is an object, in order, as it stands and parsed; what else there is, a
// torn last line among it, is passed over. A file that is not there has none. An error: the file cannot be
// read, or not to its end. It is not trusted: see base::parse_json.
absl::Status for_each_record(
    const std::string& path,
    const std::function<void(const std::string& line, const nlohmann::ordered_json& record)>& visit);

// The step that a record belongs to; nothing where it names none.
std::optional<int64_t> record_step(const nlohmann::ordered_json& record);

// Which lines of an earlier run stay when it is resumed.
struct KeptSteps {
  int64_t last_step = 0; // steps up to here
  int64_t last_evaluation = -1; // evaluations after steps up to here
};

// A JSON-lines file. Every line is written whole and flushed, so that a killed run leaves at most one torn line.
class JsonLines {
 public:
  // Opens for appending. Lines that are not kept and a torn last line are dropped first, so that a resumed run holds
  // every step and every evaluation once. An error leaves the file as it was.
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
