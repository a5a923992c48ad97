#include "data/shard_writer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstring>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"

namespace distill::data {

ShardWriter::ShardWriter(const ShardSpec& spec) : spec_(spec) {}

void ShardWriter::Stream::add(absl::Span<const uint32_t> ids, absl::Span<const uint8_t> mask) {
  for (size_t i = 0; i < mask.size(); ++i) {
    const size_t at = tokens.size() + i;
    mask_bits.resize(at / 8 + 1);
    mask_bits[at / 8] |= static_cast<uint8_t>((mask[i] != 0 ? 1 : 0) << (at % 8));
  }
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  offsets.push_back(tokens.size());
}

absl::Status ShardWriter::check(
    absl::Span<const uint32_t> tokens, absl::Span<const uint8_t> mask, uint64_t vocab_size, const char* what) const {
  const std::string name = absl::StrCat("document ", student_.offsets.size() - 1);
  for (const uint32_t id : tokens) {
    if (id >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected ids below ", vocab_size, ", found ", id));
    }
  }
  const size_t expected = spec_.loss_mask ? tokens.size() : 0;
  if (mask.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": expected ", expected, " ", what, " mask values, found ", mask.size()));
  }
  return absl::OkStatus();
}

namespace {

std::vector<uint32_t> marked(absl::Span<const uint32_t> tokens, absl::Span<const uint8_t> mask) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (mask[i] != 0) {
      out.push_back(tokens[i]);
    }
  }
  return out;
}

} // namespace

absl::Status ShardWriter::add(
    absl::Span<const uint32_t> tokens, absl::Span<const uint8_t> in_loss, const TeacherTextSpec& teacher,
    const std::string& teacher_name) {
  const std::string name = absl::StrCat("document ", student_.offsets.size() - 1);
  if (tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is empty"));
  }
  RETURN_IF_ERROR(check(tokens, in_loss, spec_.vocab_size, "loss"));
  if (!teacher.tokens.empty()) {
    if (!spec_.loss_mask) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": a teacher's text needs a shard with a loss mask"));
    }
    const bool other = spec_.teacher_vocab_size > 0;
    RETURN_IF_ERROR(
        check(teacher.tokens, teacher.in_completion, other ? spec_.teacher_vocab_size : spec_.vocab_size, "teacher"));
    if (!other && marked(tokens, in_loss) != marked(teacher.tokens, teacher.in_completion)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": the completion in the teacher's text differs from the document's"));
    }
  }
  const auto known = std::find(names_.begin(), names_.end(), teacher_name);
  if (!teacher_name.empty() && known == names_.end()) {
    if (!is_teacher_name(teacher_name) || names_.size() == kMostTeacherNames) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": expected the name of a teacher, of letters, digits and _.-, the same for all documents or one of ",
          kMostTeacherNames, ", found ", teacher_name));
    }
  }
  student_.add(tokens, in_loss);
  teacher_.add(teacher.tokens, teacher.in_completion);
  named_.push_back(teacher_name.empty() ? 0 : static_cast<uint8_t>(known - names_.begin() + 1));
  if (named_.back() > names_.size()) {
    names_.push_back(teacher_name);
  }
  return absl::OkStatus();
}

std::vector<uint8_t> ShardWriter::bytes() const {
  TORCH_CHECK(!student_.tokens.empty(), "a shard has at least one document");
  const bool teacher = !teacher_.tokens.empty();
  ShardHeader header = {};
  std::memcpy(header.magic, kShardMagic, sizeof(header.magic));
  const std::string names = absl::StrJoin(names_, "\n");
  const bool other = teacher && spec_.teacher_vocab_size > 0;
  header.version = other ? kTokenizerShardVersion
      : !names.empty()   ? kNamedShardVersion
      : teacher          ? kTeacherShardVersion
                         : kShardVersion;
  header.header_bytes = sizeof(header);
  header.token_bytes = std::max(spec_.vocab_size, other ? spec_.teacher_vocab_size : 0) <= 65536 ? 2 : 4;
  header.flags = (spec_.loss_mask ? kFlagLossMask : 0) | (teacher ? kFlagTeacherStream : 0) |
      (names.empty() ? 0 : kFlagTeacherNames) | (other ? kFlagTeacherTokenizer : 0);
  header.token_count = student_.tokens.size();
  header.document_count = student_.offsets.size() - 1;
  header.vocab_size = spec_.vocab_size;
  header.bos_id = spec_.bos_id;
  header.eos_id = spec_.eos_id;
  header.teacher_token_count = teacher_.tokens.size();
  header.teacher_name_bytes = names.size();
  std::memcpy(header.tokenizer_hash, spec_.tokenizer_hash.data(), spec_.tokenizer_hash.size());
  if (other) {
    header.teacher_vocab_size = spec_.teacher_vocab_size;
    std::memcpy(
        header.teacher_tokenizer_hash, spec_.teacher_tokenizer_hash.data(), spec_.teacher_tokenizer_hash.size());
  }
  const ShardLayout layout = shard_layout(header);
  header.file_bytes = layout.file_bytes;

  std::vector<uint8_t> bytes(layout.file_bytes);
  const auto copy = [&bytes](uint64_t at, const auto& values) {
    std::memcpy(bytes.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  const auto copy_tokens = [&](uint64_t at, const std::vector<uint32_t>& tokens) {
    header.token_bytes == 2 ? copy(at, std::vector<uint16_t>(tokens.begin(), tokens.end())) : copy(at, tokens);
  };
  std::memcpy(bytes.data(), &header, sizeof(header));
  copy(layout.offsets_at, student_.offsets);
  copy_tokens(layout.tokens_at, student_.tokens);
  if (spec_.loss_mask) {
    copy(layout.mask_at, student_.mask_bits);
  }
  if (teacher) {
    copy(layout.teacher_offsets_at, teacher_.offsets);
    copy_tokens(layout.teacher_tokens_at, teacher_.tokens);
    copy(layout.teacher_mask_at, teacher_.mask_bits);
  }
  if (!names.empty()) {
    copy(layout.named_at, named_);
    copy(layout.names_at, names);
  }
  sign_shard(absl::MakeSpan(bytes));
  return bytes;
}

absl::Status ShardWriter::write(const std::string& path) const {
  if (student_.tokens.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": a shard has at least one document, found none"));
  }
  const std::vector<uint8_t> content = bytes();
  return base::replace_file(path, {reinterpret_cast<const char*>(content.data()), content.size()});
}

void sign_shard(absl::Span<uint8_t> bytes) {
  TORCH_CHECK(bytes.size() >= sizeof(ShardHeader), "a shard has at least a header, found ", bytes.size(), " bytes");
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const base::Digest payload = base::sha256(bytes.data() + sizeof(header), bytes.size() - sizeof(header));
  std::memcpy(header.payload_hash, payload.data(), payload.size());
  const base::Digest own = shard_header_hash(header);
  std::memcpy(header.header_hash, own.data(), own.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
}

} // namespace distill::data
