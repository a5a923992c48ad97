#include "data/shard_format.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>

#include <algorithm>
#include <cstring>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"

namespace distill::data {

namespace {

constexpr uint64_t kMaxVocab = uint64_t{1} << 32;

uint64_t aligned(uint64_t bytes) {
  return (bytes + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
}

class HeaderCheck {
 public:
  explicit HeaderCheck(const std::string& path) : path_(path) {}

  template <typename Found>
  void expect(bool ok, const char* field, const std::string& expected, const Found& found) {
    if (!ok) {
      problems_.add(absl::StrCat(path_, ": header field `", field, "`: expected ", expected, ", found ", found));
    }
  }

  absl::Status status() const {
    return problems_.status(absl::StatusCode::kDataLoss);
  }

 private:
  const std::string& path_;
  base::ProblemList problems_;
};

void check_flags(const ShardHeader& header, HeaderCheck& check) {
  constexpr uint32_t kBoth = kFlagLossMask | kFlagTeacherStream;
  const uint32_t texts = header.flags & ~kFlagTeacherNames;
  if (header.version == kShardVersion) {
    check.expect(header.flags <= kFlagLossMask, "flags", "0 or 1 (loss mask) in version 1", header.flags);
  } else if (header.version == kTeacherShardVersion) {
    check.expect(header.flags == kBoth, "flags", "3 (loss mask and teacher stream) in version 2", header.flags);
  } else if (header.version == kTokenizerShardVersion) {
    check.expect(
        texts == (kBoth | kFlagTeacherTokenizer), "flags",
        "11 or 15 (loss mask, teacher stream and its tokenizer; with names of teachers) in version 4", header.flags);
  } else {
    check.expect(
        header.flags != texts && (texts <= kFlagLossMask || texts == kBoth), "flags",
        "4, 5 or 7 (names of teachers; with a loss mask; with a teacher stream, too) in version 3", header.flags);
  }
}

absl::Status check_identity(const ShardHeader& header, const std::string& path) {
  if (std::memcmp(header.magic, kShardMagic, sizeof(header.magic)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": not a token shard: header field `magic`: expected \"", kShardMagic, "\", found \"",
        absl::CHexEscape({header.magic, sizeof(header.magic)}), "\" (scripts/tokenize.py writes token shards)"));
  }
  if (header.version < kShardVersion || header.version > kTokenizerShardVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": header field `version`: expected ", kShardVersion, " to ", kTokenizerShardVersion, ", found ",
        header.version, " (tokenise again with this version's scripts/tokenize.py)"));
  }
  const base::Digest expected = shard_header_hash(header);
  if (std::memcmp(expected.data(), header.header_hash, expected.size()) != 0) {
    base::Digest found;
    std::memcpy(found.data(), header.header_hash, found.size());
    return absl::DataLossError(absl::StrCat(
        path, ": header field `header_hash`: expected ", base::hex(expected), ", found ", base::hex(found),
        " (the header is damaged)"));
  }
  return absl::OkStatus();
}

} // namespace

ShardLayout shard_layout(const ShardHeader& header) {
  ShardLayout layout;
  layout.offsets_at = sizeof(ShardHeader);
  layout.tokens_at = aligned(layout.offsets_at + (header.document_count + 1) * sizeof(uint64_t));
  layout.file_bytes = layout.tokens_at + header.token_count * header.token_bytes;
  if ((header.flags & kFlagLossMask) != 0) {
    layout.mask_at = aligned(layout.file_bytes);
    layout.file_bytes = layout.mask_at + (header.token_count + 7) / 8;
  }
  if ((header.flags & kFlagTeacherStream) != 0) {
    layout.teacher_offsets_at = aligned(layout.file_bytes);
    layout.teacher_tokens_at = aligned(layout.teacher_offsets_at + (header.document_count + 1) * sizeof(uint64_t));
    layout.teacher_mask_at = aligned(layout.teacher_tokens_at + header.teacher_token_count * header.token_bytes);
    layout.file_bytes = layout.teacher_mask_at + (header.teacher_token_count + 7) / 8;
  }
  if ((header.flags & kFlagTeacherNames) != 0) {
    layout.named_at = aligned(layout.file_bytes);
    layout.names_at = aligned(layout.named_at + header.document_count);
    layout.file_bytes = layout.names_at + header.teacher_name_bytes;
  }
  return layout;
}

bool is_teacher_name(std::string_view text) {
  constexpr size_t kLongest = 64;
  return !text.empty() && text.size() <= kLongest && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
  });
}

base::Digest shard_header_hash(const ShardHeader& header) {
  return base::sha256(&header, offsetof(ShardHeader, header_hash));
}

absl::Status check_shard_header(const ShardHeader& header, uint64_t file_bytes, const std::string& path) {
  RETURN_IF_ERROR(check_identity(header, path));
  HeaderCheck check(path);
  const auto vocab = static_cast<int64_t>(std::min(header.vocab_size, kMaxVocab));
  check.expect(header.header_bytes == sizeof(ShardHeader), "header_bytes", "256", header.header_bytes);
  check.expect(header.token_bytes == 2 || header.token_bytes == 4, "token_bytes", "2 or 4", header.token_bytes);
  check_flags(header, check);
  const bool teacher = header.version == kTeacherShardVersion || (header.flags & kFlagTeacherStream) != 0;
  check.expect(
      teacher ? header.teacher_token_count >= 1 && header.teacher_token_count <= kMaxShardTokens
              : header.teacher_token_count == 0,
      "teacher_token_count", teacher ? "1 to 2^40" : "0 without a teacher stream", header.teacher_token_count);
  const bool named = (header.flags & kFlagTeacherNames) != 0;
  constexpr uint64_t kMostNameBytes = 1 << 16;
  check.expect(
      named ? header.teacher_name_bytes >= 1 && header.teacher_name_bytes <= kMostNameBytes
            : header.teacher_name_bytes == 0,
      "teacher_name_bytes", named ? "1 to 65536" : "0 without names of teachers", header.teacher_name_bytes);
  check.expect(header.vocab_size >= 1 && header.vocab_size <= kMaxVocab, "vocab_size", "1 to 2^32", header.vocab_size);
  check.expect(
      header.token_bytes != 2 || header.vocab_size <= 65536, "vocab_size", "at most 65536 with tokens of 2 bytes",
      header.vocab_size);
  const bool own_tokenizer = (header.flags & kFlagTeacherTokenizer) != 0;
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  const bool has_hash =
      !std::all_of(std::begin(header.teacher_tokenizer_hash), std::end(header.teacher_tokenizer_hash), is_zero);
  check.expect(
      own_tokenizer ? header.teacher_vocab_size >= 1 && header.teacher_vocab_size <= kMaxVocab
                    : header.teacher_vocab_size == 0,
      "teacher_vocab_size", own_tokenizer ? "1 to 2^32" : "0 without a teacher's tokenizer", header.teacher_vocab_size);
  check.expect(
      header.token_bytes != 2 || header.teacher_vocab_size <= 65536, "teacher_vocab_size",
      "at most 65536 with tokens of 2 bytes", header.teacher_vocab_size);
  check.expect(
      own_tokenizer == has_hash, "teacher_tokenizer_hash",
      own_tokenizer ? "a hash" : "zeros without a teacher's tokenizer", has_hash ? "other bytes" : "zeros");
  const bool tokens_ok = header.token_count >= 1 && header.token_count <= kMaxShardTokens;
  check.expect(tokens_ok, "token_count", "1 to 2^40", header.token_count);
  const uint64_t most_documents = std::min<uint64_t>(header.token_count, UINT32_MAX);
  const bool documents_ok = header.document_count >= 1 && header.document_count <= most_documents;
  check.expect(documents_ok, "document_count", absl::StrCat("1 to ", most_documents), header.document_count);
  const std::string ids = absl::StrCat("-1 (none) or an id below vocab_size ", header.vocab_size);
  check.expect(header.bos_id >= -1 && header.bos_id < vocab, "bos_id", ids, header.bos_id);
  check.expect(header.eos_id >= -1 && header.eos_id < vocab, "eos_id", ids, header.eos_id);
  const auto* reserved_end = header.reserved + sizeof(header.reserved);
  check.expect(std::all_of(header.reserved, reserved_end, is_zero), "reserved", "zeros", "other bytes");
  const char* cut = file_bytes < header.file_bytes ? ": the file was cut short, or copied in part" : "";
  check.expect(
      header.file_bytes == file_bytes, "file_bytes", absl::StrCat(file_bytes, " (the file's size", cut, ")"),
      header.file_bytes);
  if (check.status().ok()) {
    const uint64_t needed = shard_layout(header).file_bytes;
    check.expect(
        needed == file_bytes, "file_bytes",
        absl::StrCat(needed, " for ", header.token_count, " tokens and ", header.document_count, " documents"),
        file_bytes);
  }
  return check.status();
}

} // namespace distill::data
