#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace distill::onpolicy {

// What an engine is to write.
struct EngineJob {
  int64_t round = 0;
  std::string model; // folder of the student's weights
  std::string version; // of these
  std::string requests; // a file of request_lines()
  std::string output; // a file that does not exist yet, for completions
  std::string log; // a file for what the engine prints
};

// Something that runs the student and writes completions. Used by rank 0 alone, from one thread. No process of an
// engine outlives it, however this program ends.
class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default; // ends the engine
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual absl::Status start(const EngineJob& job) = 0;
  // true: all has been written. An error says what the engine printed last.
  virtual absl::StatusOr<bool> poll() = 0;
  // Ends the job; its output stays as it is.
  virtual void stop() = 0;
};

} // namespace distill::onpolicy
