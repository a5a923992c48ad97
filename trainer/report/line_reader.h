#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace distill::report {

using Json = nlohmann::ordered_json;

// Calls `visit` for every whole line of a text file with its number, from 1. A last line without its newline is being
// written, and is left out. A missing file has no lines: false. InvalidArgument: no regular file, unreadable, or what
// `visit` returns.
absl::StatusOr<bool> for_each_line(
    const std::string& path, const std::function<absl::Status(int64_t number, const std::string& line)>& visit);

// Calls `visit` for every whole line of a file of JSON objects. A line that is none is an InvalidArgument error that
// names the file and the line.
absl::StatusOr<bool> for_each_object(
    const std::string& path, const std::function<absl::Status(int64_t number, Json& object)>& visit);

// The object's "step". InvalidArgument, which names the file and the line: it has none, or a negative one.
absl::StatusOr<int64_t> step_of(const Json& object, const std::string& path, int64_t number);

} // namespace distill::report
