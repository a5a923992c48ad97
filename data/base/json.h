#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace distill::base {

// Parses text that is not trusted. Duplicate keys, nesting deeper than `max_depth` and text after the document are
// InvalidArgument errors, which name `source`. The order of the keys is preserved.
absl::StatusOr<nlohmann::ordered_json> parse_json(std::string_view text, const std::string& source, int max_depth);

// Reads a whole small text file. NotFound, or InvalidArgument: not a regular file, unreadable, or larger than
// `max_bytes`, which guards against reading some other file by mistake.
absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t max_bytes);

} // namespace distill::base
