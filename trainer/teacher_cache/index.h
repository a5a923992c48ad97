#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/teacher_cache/manifest.h"
#include "trainer/teacher_cache/part_file.h"

namespace distill::teacher_cache {

// The place of the rows of a stretch.
struct StretchPlace {
  StretchEntry entry;
  int64_t part = 0;
  uint64_t offset = 0; // bytes from the start of the part's file
};

// Reads head, table and foot of a part of this cache, all but its rows. Errors are those of parse_part and check_part,
// or name the file.
absl::StatusOr<PartIndex> read_part(const std::string& folder, int64_t part, const Manifest& manifest);

// The stretches of all complete parts of a cache. It does not change once it is open, so that many threads may read it.
class Index {
 public:
  // Reads the heads, tables and feet of all parts. `partial`: parts may be missing that the manifest promises. Errors
  // are those of read_manifest, parse_part, check_part and check_complete.
  static absl::StatusOr<std::shared_ptr<const Index>> open(const std::string& folder, bool partial = false);

  const std::string& folder() const {
    return folder_;
  }
  const Manifest& manifest() const {
    return manifest_;
  }
  // Lists the stretches of a document by their first token; of two that begin with the same one, the longer comes
  // first.
  absl::Span<const StretchPlace> document(uint32_t shard, uint32_t document) const;
  int64_t parts() const {
    return parts_;
  }
  int64_t rows() const {
    return rows_;
  }

 private:
  std::string folder_;
  Manifest manifest_;
  std::vector<StretchPlace> places_; // by shard, document, first token
  int64_t parts_ = 0, rows_ = 0;
};

} // namespace distill::teacher_cache
