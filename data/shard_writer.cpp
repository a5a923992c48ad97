#include "data/shard_writer.h"

#include <absl/strings/str_cat.h>

#include <cstring>

#include "data/base/durable_file.h"

namespace distill::data {

ShardWriter::ShardWriter(const ShardSpec& spec) : spec_(spec) {}

absl::Status ShardWriter::add(absl::Span<const uint32_t> tokens, absl::Span<const uint8_t> in_loss) {
  if (tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("document ", offsets_.size() - 1, " is empty"));
  }
  for (const uint32_t id : tokens) {
    if (id >= spec_.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("document ", offsets_.size() - 1, ": expected ids below ", spec_.vocab_size, ", found ", id));
    }
  }
  if (in_loss.size() != (spec_.loss_mask ? tokens.size() : 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "document ", offsets_.size() - 1, ": expected ", spec_.loss_mask ? tokens.size() : 0,
        " loss mask values, found ", in_loss.size()));
  }
  for (size_t i = 0; i < in_loss.size(); ++i) {
    const size_t at = tokens_.size() + i;
    mask_bits_.resize(at / 8 + 1);
    mask_bits_[at / 8] |= static_cast<uint8_t>((in_loss[i] != 0 ? 1 : 0) << (at % 8));
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  offsets_.push_back(tokens_.size());
  return absl::OkStatus();
}

std::vector<uint8_t> ShardWriter::bytes() const {
  TORCH_CHECK(!tokens_.empty(), "a shard has at least one document");
  ShardHeader header = {};
  std::memcpy(header.magic, kShardMagic, sizeof(header.magic));
  header.version = kShardVersion;
  header.header_bytes = sizeof(header);
  header.token_bytes = spec_.vocab_size <= 65536 ? 2 : 4;
  header.flags = spec_.loss_mask ? kFlagLossMask : 0;
  header.token_count = tokens_.size();
  header.document_count = offsets_.size() - 1;
  header.vocab_size = spec_.vocab_size;
  header.bos_id = spec_.bos_id;
  header.eos_id = spec_.eos_id;
  std::memcpy(header.tokenizer_hash, spec_.tokenizer_hash.data(), spec_.tokenizer_hash.size());
  const ShardLayout layout = shard_layout(header);
  header.file_bytes = layout.file_bytes;

  std::vector<uint8_t> bytes(layout.file_bytes);
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + layout.offsets_at, offsets_.data(), offsets_.size() * sizeof(uint64_t));
  if (header.token_bytes == 2) {
    const std::vector<uint16_t> narrow(tokens_.begin(), tokens_.end());
    std::memcpy(bytes.data() + layout.tokens_at, narrow.data(), narrow.size() * sizeof(uint16_t));
  } else {
    std::memcpy(bytes.data() + layout.tokens_at, tokens_.data(), tokens_.size() * sizeof(uint32_t));
  }
  if (spec_.loss_mask) {
    std::memcpy(bytes.data() + layout.mask_at, mask_bits_.data(), mask_bits_.size());
  }
  sign_shard(absl::MakeSpan(bytes));
  return bytes;
}

absl::Status ShardWriter::write(const std::string& path) const {
  if (tokens_.empty()) {
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
