#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <string_view>

#include "data/base/checksum.h"

// checksums.xxh3 of a model folder: a line "XXH3 (<file>) = <16 hexadecimal digits>" for each file, as `xxhsum -H3
// --tag` prints. A file of a folder in it is "<folder>/<file>".
namespace distill::hf {

inline constexpr const char* kChecksumsFile = "checksums.xxh3";

std::string checksums_text(const std::map<std::string, uint64_t>& checksums);

// Writes the checksums.xxh3 of all files in the folder and in the folders in it. Files in `known` are not read again.
absl::Status write_checksums(const std::string& folder, std::map<std::string, uint64_t> known = {});

// Reads a checksums.xxh3. The text is not trusted: files must be in its folder and be named once. InvalidArgument
// lists the lines of `source` that are wrong.
absl::StatusOr<std::map<std::string, uint64_t>> parse_checksums(std::string_view text, const std::string& source);

struct VerifiedFolder {
  int64_t files = 0;
  int64_t bytes = 0;
};

// Checks all files that the folder's checksums.xxh3 names. NotFound: the folder has no such list, because distill did
// not write it. DataLoss lists all files that are missing or damaged.
absl::StatusOr<VerifiedFolder> verify_model_folder(const std::string& folder, const base::ReadProgress& progress = {});

} // namespace distill::hf
