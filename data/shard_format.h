#pragma once

#include <absl/status/status.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "data/base/sha256.h"

// The token shard file, versions 1 to 4. docs/data.md describes it byte by byte; scripts/token_shards/shard_file.py is
// the Python implementation.
namespace distill::data {

static_assert(std::endian::native == std::endian::little, "shards are little-endian and are read in place");

inline constexpr char kShardMagic[9] = "DISTTOKS";
inline constexpr uint32_t kShardVersion = 1;
inline constexpr uint32_t kTeacherShardVersion = 2; // of a file with a teacher stream
inline constexpr uint32_t kNamedShardVersion = 3; // of a file whose documents name their teachers
inline constexpr uint32_t kTokenizerShardVersion = 4; // of a file whose teacher stream has another tokenizer's ids
inline constexpr uint32_t kFlagLossMask = 1;
inline constexpr uint32_t kFlagTeacherStream = 2; // only with a loss mask
inline constexpr uint32_t kFlagTeacherNames = 4;
inline constexpr uint32_t kFlagTeacherTokenizer = 8; // only with a teacher stream
inline constexpr uint64_t kShardAlignment = 64; // bytes; each section starts at a multiple
inline constexpr uint64_t kMaxShardTokens = uint64_t{1} << 40;
inline constexpr const char* kShardExtension = ".dtok";

struct ShardHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes; // 256
  uint32_t token_bytes; // 2 (uint16) or 4 (uint32)
  uint32_t flags;
  uint64_t token_count;
  uint64_t document_count;
  uint64_t vocab_size; // every token id is below it
  uint64_t file_bytes;
  int64_t bos_id; // -1: none
  int64_t eos_id; // -1: none
  uint8_t tokenizer_hash[32];
  uint8_t payload_hash[32]; // SHA-256 of all bytes after the header
  uint64_t teacher_token_count; // 0: no teacher stream
  uint64_t teacher_name_bytes; // 0: no document names its teacher
  // Of the tokenizer whose ids the teacher stream has; both 0: the ids are those of tokenizer_hash.
  uint64_t teacher_vocab_size;
  uint8_t teacher_tokenizer_hash[32];
  uint8_t reserved[32]; // 0
  uint8_t header_hash[32]; // SHA-256 of the 224 bytes before it
};
static_assert(sizeof(ShardHeader) == 256);
static_assert(offsetof(ShardHeader, header_hash) == 224);

// Where the sections begin, in bytes from the start of the file.
struct ShardLayout {
  uint64_t offsets_at = 0; // uint64 [document_count + 1]
  uint64_t tokens_at = 0; // uint16 or uint32 [token_count]
  uint64_t mask_at = 0; // bits, the lowest of each byte first; 0: no loss mask
  // The teacher stream; all 0 without one.
  uint64_t teacher_offsets_at = 0; // uint64 [document_count + 1]
  uint64_t teacher_tokens_at = 0; // as tokens_at [teacher_token_count]
  uint64_t teacher_mask_at = 0; // bits [teacher_token_count]
  // The names of teachers; both 0 if no document has one.
  uint64_t named_at = 0; // uint8 [document_count]: 0: none; n: the nth name
  uint64_t names_at = 0; // text [teacher_name_bytes]: the names, between them a line feed
  uint64_t file_bytes = 0;
};

// The header's counts must be within their limits, as check_shard_header verifies.
ShardLayout shard_layout(const ShardHeader& header);

base::Digest shard_header_hash(const ShardHeader& header);

inline constexpr size_t kMostTeacherNames = 255;
// Whether a text may be the name of a teacher: 1 to 64 letters, digits, or characters of `_.-`.
bool is_teacher_name(std::string_view text);

// Checks the header's fields against each other and against the file's size. `path` begins each message.
absl::Status check_shard_header(const ShardHeader& header, uint64_t file_bytes, const std::string& path);

} // namespace distill::data
