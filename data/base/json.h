#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace distill::base {

// Parses text that is not trusted: duplicate keys, nesting deeper than `max_depth` and anything after the document are
// errors, which name `source`. Key order is kept.
absl::StatusOr<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& source, int max_depth);

// The whole of a small text file; `max_bytes` guards against reading something else by mistake.
absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t max_bytes);

} // namespace distill::base
