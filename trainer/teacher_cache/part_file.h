#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/durable_file.h"
#include "data/base/sha256.h"

// The file with a part of a cache (docs/teacher_cache.md describes it byte by byte): a head, the rows of one stretch of
// a document after the other, a table of these stretches, a foot. It is written from its first byte to its last; one
// that was cut off has no foot.
namespace distill::teacher_cache {

inline constexpr char kPartMagic[9] = "DISTTCHR";
inline constexpr char kFootMagic[9] = "DISTTEND";
inline constexpr uint32_t kPartVersion = 1;
inline constexpr uint32_t kContextVersion = 2; // whose table has contexts

struct PartHead {
  char magic[8];
  uint32_t version;
  uint32_t head_bytes; // 64
  uint64_t row_bytes;
  uint64_t part; // number of the file in its cache
  uint8_t cache_id[32]; // Manifest::id()
};
static_assert(sizeof(PartHead) == 64);

// A stretch and its rows, one for each of its tokens that has a target, in order.
struct StretchEntry {
  uint32_t shard; // index in the manifest's data
  uint32_t document; // within the shard
  uint64_t begin; // first token, within the document
  uint32_t tokens;
  uint32_t rows;
  uint64_t checksum; // XXH3 of the rows' bytes
  uint64_t context; // contexts.h; in version 1, whose table does not have it, 0
};
static_assert(sizeof(StretchEntry) == 40);

// The bytes of an entry in the table of a part.
constexpr size_t stretch_bytes(uint32_t version) {
  return version == kContextVersion ? sizeof(StretchEntry) : offsetof(StretchEntry, context);
}

struct PartFoot {
  uint64_t rows;
  uint64_t stretches;
  uint64_t file_bytes;
  uint64_t table_checksum; // XXH3 of the table
  uint8_t reserved[16]; // 0
  char magic[8];
  uint64_t checksum; // XXH3 of the head and of the 56 bytes before this field
};
static_assert(sizeof(PartFoot) == 64);

struct PartIndex {
  PartHead head;
  std::vector<StretchEntry> stretches;
  std::vector<uint64_t> offsets; // of each stretch's rows, bytes from the start of the file
};

// Reads everything but the rows of a file that is not trusted. DataLoss names `source`: truncated, damaged, or no part
// at all. FailedPrecondition: written by a program with another format version.
absl::StatusOr<PartIndex> parse_part(std::string_view file, const std::string& source);

// Writes a part to "<path>.partial" and gives it its name once it is complete and on the disk.
class PartWriter {
 public:
  static absl::StatusOr<PartWriter> create(
      const std::string& path, const base::Digest& cache_id, int64_t part, int64_t row_bytes,
      uint32_t version = kPartVersion);

  // Appends a stretch with its rows; the entry's number of rows and checksum are set here.
  absl::Status append(StretchEntry stretch, std::string_view rows);
  absl::Status finish();
  int64_t bytes() const { // written so far
    return static_cast<int64_t>(sizeof(PartHead) + rows_ * head_.row_bytes);
  }

 private:
  PartWriter(std::string path, base::DurableFile file, const PartHead& head)
      : path_(std::move(path)), file_(std::move(file)), head_(head) {}

  std::string path_;
  base::DurableFile file_;
  PartHead head_;
  std::vector<StretchEntry> table_;
  uint64_t rows_ = 0;
  int64_t writeback_ = 0; // bytes whose way to the disk has begun
};

} // namespace distill::teacher_cache
