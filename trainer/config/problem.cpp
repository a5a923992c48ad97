#include "trainer/config/problem.h"

#include <absl/strings/str_cat.h>

namespace distill::config {

std::string format(const Problem& problem) {
  std::string text = problem.file;
  if (problem.line > 0) {
    absl::StrAppend(&text, ":", problem.line);
  }
  if (!text.empty()) {
    text += ": ";
  }
  if (!problem.key.empty()) {
    absl::StrAppend(&text, problem.key, ": ");
  }
  absl::StrAppend(&text, "expected ", problem.expected, ", found ", problem.found);
  if (!problem.hint.empty()) {
    absl::StrAppend(&text, "\n    ", problem.hint);
  }
  return text;
}

std::string report(absl::Span<const Problem> problems) {
  std::string text = problems.size() == 1 ? "1 problem in the configuration:"
                                          : absl::StrCat(problems.size(), " problems in the configuration:");
  for (const Problem& problem : problems) {
    absl::StrAppend(&text, "\n  ", format(problem));
  }
  return text;
}

} // namespace distill::config
