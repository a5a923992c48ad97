#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace distill::base {

// Collects problems, so that one error reports all of them.
class ProblemList {
 public:
  void add(std::string message);
  // Adds an error's message and remembers its code. A status that is ok is no problem.
  void add(const absl::Status& status);
  // Returns the value, or adds its error and returns nullopt.
  template <typename T>
  std::optional<T> take(absl::StatusOr<T> result) {
    add(result.status());
    return result.ok() ? std::optional<T>(*std::move(result)) : std::nullopt;
  }

  bool empty() const {
    return messages_.empty();
  }
  size_t size() const {
    return messages_.size();
  }
  // All messages, each on a line of its own.
  std::string text() const;
  // Returns ok if there are no problems, and otherwise their text with this code.
  absl::Status status(absl::StatusCode code) const;
  // Returns the same with the code of the last status that was added, or InvalidArgument if none was.
  absl::Status status() const {
    return status(code_);
  }

 private:
  std::vector<std::string> messages_;
  absl::StatusCode code_ = absl::StatusCode::kInvalidArgument;
};

} // namespace distill::base
