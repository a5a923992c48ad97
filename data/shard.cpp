#include "data/shard.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>

#include <filesystem>
#include <fstream>
#include <set>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/teacher_text.h"

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
  RETURN_IF_ERROR(shard.check_offsets(shard.student_stream()));
  RETURN_IF_ERROR(shard.check_padding(shard.student_stream()));
  if (shard.has_teacher_stream()) {
    RETURN_IF_ERROR(shard.check_offsets(shard.teacher_stream()));
    RETURN_IF_ERROR(shard.check_padding(shard.teacher_stream()));
  }
  RETURN_IF_ERROR(shard.read_teacher_names());
  return shard;
}

absl::Status Shard::read_teacher_names() {
  if (layout_.named_at == 0) {
    return absl::OkStatus();
  }
  const auto* text = reinterpret_cast<const char*>(file_.bytes() + layout_.names_at);
  const std::string names(text, header_.teacher_name_bytes);
  teacher_names_ = absl::StrSplit(names, '\n');
  const bool named = std::all_of(teacher_names_.begin(), teacher_names_.end(), is_teacher_name);
  const std::set<std::string> different(teacher_names_.begin(), teacher_names_.end());
  if (!named || different.size() != teacher_names_.size() || teacher_names_.size() > kMostTeacherNames) {
    return absl::DataLossError(absl::StrCat(
        path(), ": names of teachers: expected 1 to ", kMostTeacherNames,
        " different ones of letters, digits and _.-, ", "found ", teacher_names_.size(), ": ",
        absl::Utf8SafeCEscape(absl::StrJoin(teacher_names_, ", "))));
  }
  for (int64_t document = 0; document < documents(); ++document) {
    const size_t number = file_.bytes()[layout_.named_at + document];
    if (number > teacher_names_.size()) {
      return absl::DataLossError(absl::StrCat(
          path(), ": document ", document, ": expected the number of one of ", teacher_names_.size(),
          " teachers, or 0, found ", number));
    }
  }
  const auto is_zero = [](uint8_t byte) { return byte == 0; };
  const uint8_t* end = file_.bytes() + layout_.named_at + documents();
  if (!std::all_of(end, file_.bytes() + layout_.names_at, is_zero)) {
    return absl::DataLossError(
        absl::StrCat(path(), ": padding before the names of teachers: expected zeros, found other bytes"));
  }
  return absl::OkStatus();
}

base::Digest Shard::tokenizer_hash() const {
  base::Digest digest;
  std::memcpy(digest.data(), header_.tokenizer_hash, digest.size());
  return digest;
}

base::Digest Shard::teacher_tokenizer_hash() const {
  base::Digest digest;
  std::memcpy(digest.data(), header_.teacher_tokenizer_hash, digest.size());
  return digest;
}

Shard::Stream Shard::student_stream() const {
  return {
      "",
      layout_.offsets_at,
      layout_.tokens_at,
      layout_.mask_at,
      header_.token_count,
      header_.vocab_size,
      /*empty_documents=*/false};
}

Shard::Stream Shard::teacher_stream() const {
  return {
      "teacher ",
      layout_.teacher_offsets_at,
      layout_.teacher_tokens_at,
      layout_.teacher_mask_at,
      header_.teacher_token_count,
      has_teacher_tokenizer() ? header_.teacher_vocab_size : header_.vocab_size,
      /*empty_documents=*/true};
}

absl::Status Shard::check_offsets(const Stream& stream) const {
  const auto at = [&](int64_t document) { return static_cast<uint64_t>(offset(stream.offsets_at, document)); };
  const std::string name = absl::StrCat(path(), ": ", stream.text, "document offset ");
  const char* count = stream.empty_documents ? "teacher_token_count" : "token_count";
  if (at(0) != 0) {
    return absl::DataLossError(absl::StrCat(name, "0: expected 0, found ", at(0)));
  }
  for (int64_t i = 0; i < documents(); ++i) {
    const uint64_t begin = at(i), end = at(i + 1);
    if (end < begin + (stream.empty_documents ? 0 : 1) || end > stream.tokens) {
      return absl::DataLossError(absl::StrCat(
          name, i + 1, ": expected ",
          stream.empty_documents ? absl::StrCat("at least ", begin)
                                 : absl::StrCat("more than ", begin, " (documents are not empty)"),
          " and at most ", stream.tokens, " (", count, "), found ", end));
    }
  }
  if (at(documents()) != stream.tokens) {
    return absl::DataLossError(absl::StrCat(
        path(), ": last ", stream.text, "document offset: expected ", stream.tokens, " (", count, "), found ",
        at(documents())));
  }
  return absl::OkStatus();
}

absl::Status Shard::check_padding(const Stream& stream) const {
  const auto all_zero = [&](uint64_t begin, uint64_t end) {
    return std::all_of(file_.bytes() + begin, file_.bytes() + end, [](uint8_t byte) { return byte == 0; });
  };
  const uint64_t offsets_end = stream.offsets_at + (header_.document_count + 1) * sizeof(uint64_t);
  const uint64_t tokens_end = stream.tokens_at + stream.tokens * header_.token_bytes;
  if (!all_zero(offsets_end, stream.tokens_at)) {
    return absl::DataLossError(
        absl::StrCat(path(), ": padding before the ", stream.text, "tokens: expected zeros, found other bytes"));
  }
  if (stream.mask_at != 0) {
    const uint64_t used = stream.tokens % 8;
    const uint64_t mask_end = stream.mask_at + (stream.tokens + 7) / 8;
    if (!all_zero(tokens_end, stream.mask_at) || (used != 0 && file_.bytes()[mask_end - 1] >> used != 0)) {
      return absl::DataLossError(absl::StrCat(
          path(), ": padding around the ", stream.empty_documents ? "teacher mask" : "loss mask",
          ": expected zeros, found other bits"));
    }
  }
  return absl::OkStatus();
}

absl::Status Shard::bad_token(const Stream& stream, int64_t token, int64_t id) const {
  int64_t low = 0;
  int64_t high = documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (offset(stream.offsets_at, middle) <= token ? low : high) = middle;
  }
  return absl::DataLossError(absl::StrCat(
      path(), ": document ", low, ", ", stream.text, "token ", token - offset(stream.offsets_at, low),
      ": expected an id below ", stream.vocab_size,
      stream.vocab_size == header_.vocab_size ? " (vocab_size)" : " (teacher_vocab_size)", ", found ", id));
}

absl::Status Shard::read(const Stream& stream, int64_t begin, absl::Span<int64_t> out) const {
  TORCH_CHECK(
      begin >= 0 && begin + static_cast<int64_t>(out.size()) <= static_cast<int64_t>(stream.tokens), stream.text,
      "tokens [", begin, ", ", begin + static_cast<int64_t>(out.size()), ") of a shard of ", stream.tokens);
  const auto vocab = static_cast<int64_t>(stream.vocab_size);
  int64_t largest = 0;
  const auto widen = [&](const auto* tokens) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int64_t>(tokens[begin + static_cast<int64_t>(i)]);
      largest = std::max(largest, out[i]);
    }
  };
  const uint8_t* at = file_.bytes() + stream.tokens_at;
  if (header_.token_bytes == 2) {
    widen(reinterpret_cast<const uint16_t*>(at));
  } else {
    widen(reinterpret_cast<const uint32_t*>(at));
  }
  if (largest >= vocab) {
    const auto bad = std::find_if(out.begin(), out.end(), [&](int64_t id) { return id >= vocab; });
    return bad_token(stream, begin + (bad - out.begin()), *bad);
  }
  return absl::OkStatus();
}

absl::Status Shard::read_tokens(int64_t begin, absl::Span<int64_t> out) const {
  return read(student_stream(), begin, out);
}

absl::Status Shard::read_teacher_tokens(int64_t begin, absl::Span<int64_t> out) const {
  return read(teacher_stream(), begin, out);
}

absl::Status Shard::check_ids(const Stream& stream) const {
  const auto tokens = static_cast<int64_t>(stream.tokens);
  std::vector<int64_t> buffer(1 << 16);
  for (int64_t begin = 0; begin < tokens; begin += static_cast<int64_t>(buffer.size())) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(buffer.size()), tokens - begin);
    RETURN_IF_ERROR(read(stream, begin, absl::MakeSpan(buffer.data(), count)));
  }
  return absl::OkStatus();
}

bool Shard::is_left_out(int64_t token) const {
  const auto after = std::upper_bound(
      left_out_.begin(), left_out_.end(), token,
      [](int64_t value, const TokenRange& range) { return value < range.begin; });
  return after != left_out_.begin() && token < std::prev(after)->end;
}

absl::Status Shard::verify(const TextAlignment* alignment) const {
  advise(base::Access::kSequential);
  const base::Digest found = base::sha256(file_.bytes() + sizeof(ShardHeader), file_.size() - sizeof(ShardHeader));
  if (std::memcmp(found.data(), header_.payload_hash, found.size()) != 0) {
    base::Digest expected;
    std::memcpy(expected.data(), header_.payload_hash, expected.size());
    return absl::DataLossError(absl::StrCat(
        path(), ": header field `payload_hash`: expected ", base::hex(expected), ", found ", base::hex(found),
        " in the file"));
  }
  RETURN_IF_ERROR(check_ids(student_stream()));
  if (has_teacher_stream()) {
    RETURN_IF_ERROR(check_ids(teacher_stream()));
    const bool checks = alignment != nullptr || !has_teacher_tokenizer();
    for (int64_t document = 0; checks && document < documents(); ++document) {
      RETURN_IF_ERROR(check_completion(*this, document, alignment));
    }
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
    if (!shards.empty() &&
        (shard->has_teacher_tokenizer() != shards[0].has_teacher_tokenizer() ||
         shard->teacher_tokenizer_hash() != shards[0].teacher_tokenizer_hash())) {
      problems.add(absl::DataLossError(absl::StrCat(
          file, ": header field `teacher_tokenizer_hash`: expected ", base::hex(shards[0].teacher_tokenizer_hash()),
          " as in ", shards[0].path(), ", found ", base::hex(shard->teacher_tokenizer_hash()))));
    }
    shards.push_back(*std::move(shard));
  }
  RETURN_IF_ERROR(problems.status());
  return shards;
}

bool has_teacher_stream(const std::string& path) {
  const auto paths = shard_paths(path);
  if (!paths.ok()) {
    return false;
  }
  return std::any_of(paths->begin(), paths->end(), [](const std::string& name) {
    ShardHeader header;
    std::ifstream file(name, std::ios::binary);
    return file.read(reinterpret_cast<char*>(&header), sizeof(header)) &&
        std::memcmp(header.magic, kShardMagic, sizeof(header.magic)) == 0 && header.version >= kTeacherShardVersion &&
        header.version <= kTokenizerShardVersion && (header.flags & kFlagTeacherStream) != 0;
  });
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
