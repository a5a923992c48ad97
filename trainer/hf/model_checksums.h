#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <string_view>

// checksums.xxh3 of a model folder: a line "XXH3 (<file>) = <16 hexadecimal digits>" for each file, as `xxhsum -H3
// --tag` prints.
namespace distill::hf {

inline constexpr const char* kChecksumsFile = "checksums.xxh3";

std::string checksums_text(const std::map<std::string, uint64_t>& checksums);

// Reads a checksums.xxh3 that is not trusted: every file is one of the same folder, and none stands twice.
// InvalidArgument lists the lines of `source` that say anything else.
absl::StatusOr<std::map<std::string, uint64_t>> parse_checksums(std::string_view text, const std::string& source);

struct VerifiedFolder {
  int64_t files = 0;
  int64_t bytes = 0;
};

// Compares every file that the folder's checksums.xxh3 names. NotFound: the folder has none (only folders that distill
// wrote do). DataLoss lists every file that is missing or damaged.
absl::StatusOr<VerifiedFolder> verify_model_folder(const std::string& folder);

} // namespace distill::hf
