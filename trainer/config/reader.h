#pragma once

#include <absl/types/span.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/problem.h"

namespace distill::config {

// The defaults with the values of a YAML text and of overrides. Keys with a problem keep their default.
struct ReadResult {
  Config config;
  Origins origins; // of every key that was given, keys with a problem included
  std::vector<Problem> problems;
  bool is_dump = false; // the text was written by dump(), which gives every key
};

// `file` is the name of the text in problems. An override is "section.name=VALUE" with VALUE in YAML; the last override
// of a key wins, and "section.name=null" restores the default.
ReadResult read(std::string_view yaml, const std::string& file, absl::Span<const std::string> overrides);

// The defaults with the values of overrides alone.
ReadResult read_overrides(absl::Span<const std::string> overrides);

// Reads the text from a file. A file that cannot be read is a problem, too.
ReadResult read_file(const std::string& path, absl::Span<const std::string> overrides);

} // namespace distill::config
