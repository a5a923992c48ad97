#pragma once

#include <absl/types/span.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/problem.h"

namespace distill::config {

// What a YAML text and overrides say, over the defaults. Keys with a problem keep their default.
struct ReadResult {
  Config config;
  Origins origins; // of every key that was given, those with a problem included
  std::vector<Problem> problems;
};

// `file` names the text in problems. An override is "section.name=VALUE", VALUE in YAML; the last one of a key wins,
// and "section.name=null" puts the default back.
ReadResult read(std::string_view yaml, const std::string& file, absl::Span<const std::string> overrides);

// The same from a file. A file that cannot be read is a problem too.
ReadResult read_file(const std::string& path, absl::Span<const std::string> overrides);

} // namespace distill::config
