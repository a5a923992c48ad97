#include "data/shard.h"

#include <absl/strings/str_cat.h>

#include <filesystem>
#include <fstream>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"

namespace distill::data {

namespace fs = std::filesystem;

Shard::Shard(base::MappedFile file, const ShardHeader& header)
    : file_(std::move(file)), header_(header), layout_(shard_layout(header)) {}

absl::StatusOr<Shard> Shard::open(const std::string& path) {
  ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(path));
  if (file.size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the file is empty"));
  }
  if (file.size() < sizeof(ShardHeader)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": not a token shard: expected a header of ", sizeof(ShardHeader), " bytes, found ", file.size()));
  }
  ShardHeader header;
  std::memcpy(&header, file.bytes(), sizeof(header));
  RETURN_IF_ERROR(check_shard_header(header, file.size(), path));
  Shard shard(std::move(file), header);
  RETURN_IF_ERROR(shard.check_offsets());
  RETURN_IF_ERROR(shard.check_padding());
  return shard;
}

base::Digest Shard::tokenizer_hash() const {
  base::Digest digest;
  std::memcpy(digest.data(), header_.tokenizer_hash, digest.size());
  return digest;
}

absl::Status Shard::check_offsets() const {
  if (document_begin(0) != 0) {
    return absl::DataLossError(
        absl::StrCat(path(), ": document offset 0: expected 0, found ", static_cast<uint64_t>(document_begin(0))));
  }
  for (int64_t i = 0; i < documents(); ++i) {
    const auto begin = static_cast<uint64_t>(document_begin(i));
    const auto end = static_cast<uint64_t>(document_begin(i + 1));
    if (end <= begin || end > header_.token_count) {
      return absl::DataLossError(absl::StrCat(
          path(), ": document offset ", i + 1, ": expected more than ", begin,
          " (documents are not empty) and at most ", header_.token_count, " (token_count), found ", end));
    }
  }
  if (document_begin(documents()) != tokens()) {
    return absl::DataLossError(absl::StrCat(
        path(), ": last document offset: expected ", tokens(), " (token_count), found ", document_begin(documents())));
  }
  return absl::OkStatus();
}

absl::Status Shard::check_padding() const {
  const auto all_zero = [&](uint64_t begin, uint64_t end) {
    return std::all_of(file_.bytes() + begin, file_.bytes() + end, [](uint8_t byte) { return byte == 0; });
  };
  const uint64_t offsets_end = layout_.offsets_at + (header_.document_count + 1) * sizeof(uint64_t);
  const uint64_t tokens_end = layout_.tokens_at + header_.token_count * header_.token_bytes;
  if (!all_zero(offsets_end, layout_.tokens_at)) {
    return absl::DataLossError(absl::StrCat(path(), ": padding before the tokens: expected zeros, found other bytes"));
  }
  if (has_loss_mask()) {
    const uint64_t used = header_.token_count % 8;
    if (!all_zero(tokens_end, layout_.mask_at) || (used != 0 && file_.bytes()[layout_.file_bytes - 1] >> used != 0)) {
      return absl::DataLossError(
          absl::StrCat(path(), ": padding around the loss mask: expected zeros, found other bits"));
    }
  }
  return absl::OkStatus();
}

absl::Status Shard::bad_token(int64_t token, int64_t id) const {
  int64_t low = 0;
  int64_t high = documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (document_begin(middle) <= token ? low : high) = middle;
  }
  return absl::DataLossError(absl::StrCat(
      path(), ": document ", low, ", token ", token - document_begin(low), ": expected an id below ",
      header_.vocab_size, " (vocab_size), found ", id));
}

absl::Status Shard::read_tokens(int64_t begin, absl::Span<int64_t> out) const {
  TORCH_CHECK(
      begin >= 0 && begin + static_cast<int64_t>(out.size()) <= tokens(), "tokens [", begin, ", ",
      begin + static_cast<int64_t>(out.size()), ") of a shard of ", tokens());
  const auto vocab = static_cast<int64_t>(header_.vocab_size);
  int64_t largest = 0;
  const auto widen = [&](const auto* tokens) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int64_t>(tokens[begin + static_cast<int64_t>(i)]);
      largest = std::max(largest, out[i]);
    }
  };
  const uint8_t* at = file_.bytes() + layout_.tokens_at;
  if (header_.token_bytes == 2) {
    widen(reinterpret_cast<const uint16_t*>(at));
  } else {
    widen(reinterpret_cast<const uint32_t*>(at));
  }
  if (largest >= vocab) {
    const auto bad = std::find_if(out.begin(), out.end(), [&](int64_t id) { return id >= vocab; });
    return bad_token(begin + (bad - out.begin()), *bad);
  }
  return absl::OkStatus();
}

absl::Status Shard::verify() const {
  advise(base::Access::kSequential);
  const base::Digest found = base::sha256(file_.bytes() + sizeof(ShardHeader), file_.size() - sizeof(ShardHeader));
  if (std::memcmp(found.data(), header_.payload_hash, found.size()) != 0) {
    base::Digest expected;
    std::memcpy(expected.data(), header_.payload_hash, expected.size());
    return absl::DataLossError(absl::StrCat(
        path(), ": header field `payload_hash`: expected ", base::hex(expected), ", found ", base::hex(found),
        " in the file"));
  }
  std::vector<int64_t> buffer(1 << 16);
  for (int64_t begin = 0; begin < tokens(); begin += static_cast<int64_t>(buffer.size())) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(buffer.size()), tokens() - begin);
    RETURN_IF_ERROR(read_tokens(begin, absl::MakeSpan(buffer.data(), count)));
  }
  return absl::OkStatus();
}

void Shard::advise(base::Access access) const {
  file_.advise(layout_.tokens_at, layout_.file_bytes, access);
}

namespace {

absl::StatusOr<std::vector<std::string>> shard_paths(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  if (!fs::is_directory(path, error)) {
    return std::vector<std::string>{path};
  }
  std::vector<std::string> paths;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == kShardExtension) {
      paths.push_back(it->path().string());
    }
  }
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot list the folder: ", error.message()));
  }
  if (paths.empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": expected token shards (*", kShardExtension, "), found none in this folder"));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

} // namespace

absl::StatusOr<std::vector<Shard>> open_shards(const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, shard_paths(path));
  std::vector<Shard> shards;
  base::ProblemList problems;
  for (const std::string& file : paths) {
    std::optional<Shard> shard = problems.take(Shard::open(file));
    if (!shard) {
      continue;
    }
    if (!shards.empty() && shard->tokenizer_hash() != shards[0].tokenizer_hash()) {
      problems.add(absl::DataLossError(absl::StrCat(
          file, ": header field `tokenizer_hash`: expected ", base::hex(shards[0].tokenizer_hash()), " as in ",
          shards[0].path(), ", found ", base::hex(shard->tokenizer_hash()))));
    }
    if (!shards.empty() && shard->header().vocab_size != shards[0].header().vocab_size) {
      problems.add(absl::DataLossError(absl::StrCat(
          file, ": header field `vocab_size`: expected ", shards[0].header().vocab_size, " as in ", shards[0].path(),
          ", found ", shard->header().vocab_size)));
    }
    shards.push_back(*std::move(shard));
  }
  RETURN_IF_ERROR(problems.status());
  return shards;
}

bool is_token_data(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return shard_paths(path).ok();
  }
  char magic[8] = {};
  std::ifstream file(path, std::ios::binary);
  return file.read(magic, sizeof(magic)) && std::memcmp(magic, kShardMagic, sizeof(magic)) == 0;
}

} // namespace distill::data
