#include "data/base/problem_list.h"

namespace distill::base {

void ProblemList::add(std::string message) {
  messages_.push_back(std::move(message));
}

void ProblemList::add(const absl::Status& status) {
  if (!status.ok()) {
    code_ = status.code();
    messages_.emplace_back(status.message());
  }
}

std::string ProblemList::text() const {
  return absl::StrJoin(messages_, "\n");
}

absl::Status ProblemList::status(absl::StatusCode code) const {
  return empty() ? absl::OkStatus() : absl::Status(code, text());
}

} // namespace distill::base
