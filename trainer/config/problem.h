#pragma once

#include <absl/types/span.h>

#include <cstdint>
#include <map>
#include <string>

namespace distill::config {

// A mistake in the configuration, for its author to read.
struct Problem {
  std::string file; // the file's path; "--set" for an override
  int64_t line = 0; // 1-based; 0: none
  std::string key; // dotted: "loss.beta", "data.train[1].weight"; empty: the file as a whole
  std::string expected;
  std::string found;
  std::string hint; // empty: none
};

// "FILE:LINE: KEY: expected ..., found ...", and the hint on a line of its own.
std::string format(const Problem& problem);

// Lists all problems below a line with their number.
std::string report(absl::Span<const Problem> problems);

// The place where the value of a key was given. Keys that were not given have no origin.
struct Origin {
  std::string file; // as Problem::file
  int64_t line = 0;
};
using Origins = std::map<std::string, Origin, std::less<>>;

} // namespace distill::config
