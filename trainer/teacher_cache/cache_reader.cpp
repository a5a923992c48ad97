#include "trainer/teacher_cache/cache_reader.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>

#include "data/base/checksum.h"
#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/contexts.h"
#include "trainer/teacher_cache/row_places.h"
#include "trainer/teacher_cache/sparse_format.h"

namespace distill::teacher_cache {
namespace {

using Clock = std::chrono::steady_clock;

// A file that is open for reading.
class OpenFile {
 public:
  explicit OpenFile(std::string path)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {}
  ~OpenFile() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  absl::Status read(uint64_t begin, uint64_t size, uint8_t* out) const {
    if (fd_ < 0) {
      return absl::DataLossError(absl::StrCat(path_, ": cannot open: ", std::strerror(errno)));
    }
    for (uint64_t done = 0; done < size;) {
      const ssize_t count = ::pread(fd_, out + done, size - done, static_cast<off_t>(begin + done));
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        return absl::DataLossError(absl::StrCat(
            path_, ": cannot read at byte ", begin + done, ": ",
            count < 0 ? std::strerror(errno) : "the file ends there"));
      }
      done += static_cast<uint64_t>(count);
    }
    return absl::OkStatus();
  }

 private:
  std::string path_;
  int fd_;
};

// Counts the tokens [begin, end) of a document that have a target, as far as the document itself decides.
int64_t count_targets(const data::Shard& shard, int64_t document, int64_t begin, int64_t end) {
  const int64_t first = shard.document_begin(document), length = shard.document_length(document);
  int64_t count = 0;
  for (int64_t token = begin; token < std::min(end, length - 1); ++token) {
    count += shard.has_target(first + token + 1) ? 1 : 0;
  }
  return count;
}

// Calls a function with every stretch that a data set may hold, and its context.
void for_each_context(
    const data::Dataset& data, int64_t teacher,
    const std::function<void(const data::Stretch& stretch, uint64_t context)>& visit) {
  uint64_t next = 0; // context of the stretch that follows in the same sequence
  const bool concat = data.options().packing == data::PackingMode::kConcat;
  data.for_each_stretch(
      [&](const data::Stretch& stretch) {
        const uint64_t context = !concat ? 0 : (stretch.at == 0 ? kSequenceStart : next);
        next = concat ? context_after(context, stretch) : 0;
        visit(stretch, context);
      },
      teacher);
}

// `teacher_seq_len`: of a teacher with a tokenizer of its own; 0: other.
std::string lengths_text(int64_t seq_len, int64_t teacher_seq_len) {
  return absl::StrCat(
      "data.seq_len ", seq_len,
      teacher_seq_len > 0 ? absl::StrCat(" and data.teacher_seq_len ", teacher_seq_len) : std::string());
}

// Describes the order of a stream of documents.
std::string order_text(bool shuffle, int64_t seed) {
  return shuffle ? absl::StrCat("data.seed ", seed) : "data.shuffle: false";
}

std::string full_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path full = std::filesystem::weakly_canonical(path, error);
  return error ? path : full.string();
}

// Lists the data sets of a cache.
std::string sources_text(const std::vector<DataFile>& files) {
  std::vector<std::string> sources;
  for (const DataFile& file : files) {
    if (std::find(sources.begin(), sources.end(), file.source) == sources.end()) {
      sources.push_back(file.source);
    }
  }
  return absl::StrJoin(sources, ", ");
}

std::string place_text(const data::Stretch& stretch) {
  return absl::StrFormat("%s: document %d", stretch.shard->path(), stretch.document);
}

} // namespace

absl::StatusOr<std::shared_ptr<CacheReader>> CacheReader::open(
    std::shared_ptr<const Index> index, const data::Dataset& data, const RowsOptions& options) {
  std::shared_ptr<CacheReader> rows(new CacheReader(std::move(index), options));
  rows->lengths_ =
      lengths_text(data.options().seq_len, rows->index_->manifest().own_tokenizer ? data.teacher_seq_len() : 0);
  rows->order_ = order_text(data.options().shuffle, data.options().seed);
  RETURN_IF_ERROR(rows->map_shards(data));
  RETURN_IF_ERROR(rows->check_stretches(data));
  return rows;
}

absl::Status CacheReader::map_shards(const data::Dataset& data) {
  const std::vector<DataFile>& files = index_->manifest().data;
  base::ProblemList problems;
  if (data.options().packing != index_->manifest().packing) {
    problems.add(absl::StrCat(
        "data.packing: expected ", base::enum_name(index_->manifest().packing), ", with which the cache ",
        index_->folder(), " was captured, found ", base::enum_name(data.options().packing),
        ": with concat other documents are to the left of a token, with pack none is"));
  }
  for (const data::Shard* shard : data.shards(options_.teacher)) {
    base::Digest hash;
    std::copy_n(shard->header().header_hash, hash.size(), hash.begin());
    const auto same =
        std::find_if(files.begin(), files.end(), [&](const DataFile& f) { return f.header_hash == hash; });
    if (same != files.end()) {
      shard_number_[shard] = static_cast<uint32_t>(same - files.begin());
      continue;
    }
    const auto other = std::find_if(
        files.begin(), files.end(), [&](const DataFile& f) { return full_path(f.path) == full_path(shard->path()); });
    problems.add(absl::StrCat(
        options_.data_key, ": ", shard->path(),
        other == files.end()
            ? absl::StrCat(
                  " is not in the cache ", index_->folder(), ", which is of ", sources_text(files),
                  ": no token shard of it has the header_hash ", base::hex(hash))
            : absl::StrCat(
                  ": its header_hash is ", base::hex(hash), ", and the cache ", index_->folder(),
                  " is of this file with ", base::hex(other->header_hash), ": the data changed after the capture"),
        "; capture again, or name the data of the cache"));
  }
  return problems.status(absl::StatusCode::kInvalidArgument);
}

// Finds the pieces of a stretch. False: some token of the stretch is not there, or has another left context.
bool CacheReader::find(const data::Stretch& stretch, uint64_t context, std::vector<Piece>& pieces) const {
  pieces.clear();
  const auto places = index_->document(shard_number_.at(stretch.shard), static_cast<uint32_t>(stretch.document));
  const int64_t end = stretch.begin + stretch.tokens;
  const size_t own_rows = own_text_rows(*stretch.shard, stretch.document, stretch.teacher_tokens).size();
  for (const StretchPlace& place : places) { // the longest of those that begin with the same token comes first
    // The last token of a document that others follow may have a target: only as a whole the stretch is what was
    // captured.
    const bool long_enough = context == 0 ? place.entry.tokens >= stretch.tokens && place.entry.rows >= own_rows
                                          : static_cast<int64_t>(place.entry.tokens) == stretch.tokens;
    if (static_cast<int64_t>(place.entry.begin) == stretch.begin && place.entry.context == context && long_enough) {
      pieces.push_back({place, stretch.begin, stretch.tokens});
      return true;
    }
  }
  if (!options_.other_contexts || context != 0 || stretch.teacher_tokens > 0) {
    return false;
  }
  int64_t at = stretch.begin;
  for (const StretchPlace& place : places) {
    const auto begin = static_cast<int64_t>(place.entry.begin), stop = begin + place.entry.tokens;
    if (begin <= at && at < stop && at < end) {
      pieces.push_back({place, at, std::min(stop, end) - at});
      at = std::min(stop, end);
    }
  }
  return at == end;
}

bool CacheReader::has(const data::Stretch& stretch, uint64_t context) const {
  std::vector<Piece> pieces;
  return find(stretch, context, pieces);
}

absl::Status CacheReader::no_rows(const data::Stretch& stretch) const {
  const auto places = index_->document(shard_number_.at(stretch.shard), static_cast<uint32_t>(stretch.document));
  const Manifest& manifest = index_->manifest();
  const std::string captured = lengths_text(manifest.seq_len, manifest.own_tokenizer ? manifest.teacher_seq_len : 0);
  if (places.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        options_.data_key, ": ", place_text(stretch), " is not in the cache ", index_->folder(),
        ", which was captured with ", captured));
  }
  if (manifest.concat()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: no sequence of the cache %s has the same tokens to the left of token %d: expected those of "
        "%s and %s, found the cache captured with %s and %s; with packing: concat a cache serves runs with the same "
        "data in this order",
        options_.data_key, place_text(stretch), index_->folder(), stretch.begin, lengths_, order_, captured,
        order_text(manifest.shuffle, manifest.data_seed)));
  }
  const StretchPlace* near = &places.front();
  for (const StretchPlace& place : places) {
    near = static_cast<int64_t>(place.entry.begin) <= stretch.begin ? &place : near;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s is cut at other places than in the cache %s: expected %d tokens from token %d on, before which there is "
      "no context (%s), found %d from token %d on (captured with %s); capture with this length%s",
      options_.data_key, place_text(stretch), index_->folder(), stretch.tokens, stretch.begin, lengths_,
      near->entry.tokens, near->entry.begin, captured,
      stretch.teacher_tokens > 0 ? "" : ", or set cache.other_contexts: allow"));
}

absl::Status CacheReader::check_stretches(const data::Dataset& data) const {
  if (options_.partial) {
    return absl::OkStatus();
  }
  absl::Status first;
  int64_t missing = 0, all = 0;
  std::vector<Piece> pieces;
  for_each_context(data, options_.teacher, [&](const data::Stretch& stretch, uint64_t context) {
    ++all;
    if (!find(stretch, context, pieces)) {
      first = missing++ == 0 ? no_rows(stretch) : first;
    }
  });
  return missing == 0
      ? first
      : absl::InvalidArgumentError(absl::StrCat(
            std::string(first.message()), "; the same with ", missing - 1, " more of ", all, " stretches",
            index_->manifest().open_ended() ? "; `distill capture` writes a cache of all of them, in another folder"
                                            : ""));
}

// Reads the rows of a piece to the rows of its tokens in the batch.
absl::Status CacheReader::read_piece(
    const data::Batch& batch, const data::Stretch& stretch, const Piece& piece, uint8_t* rows_NW) const {
  const auto width = static_cast<uint64_t>(index_->manifest().rows.row_bytes());
  const std::vector<RowPlace> rows = row_places(batch, stretch, piece.begin, piece.tokens);
  if (rows.empty()) {
    return absl::OkStatus();
  }
  const StretchEntry& entry = piece.place.entry;
  const auto begin = static_cast<int64_t>(entry.begin);
  const int64_t skipped =
      begin == piece.begin ? 0 : count_targets(*stretch.shard, stretch.document, begin, piece.begin);
  const auto count = static_cast<int64_t>(rows.size());
  const std::string path = part_path(index_->folder(), piece.place.part);
  const bool whole = begin == piece.begin && static_cast<int64_t>(entry.tokens) == piece.tokens;
  if (whole ? count != entry.rows : skipped + count > entry.rows) {
    return absl::DataLossError(absl::StrFormat(
        "%s: document %d of %s: expected %d rows for %d tokens from %d on, found %d", path, stretch.document,
        stretch.shard->path(), skipped + count, piece.tokens, piece.begin, entry.rows));
  }
  const OpenFile file(path);
  const uint64_t bytes = entry.rows * width;
  const bool in_place = whole && rows.back().at - rows.front().at + 1 == count; // consecutive tokens
  thread_local std::vector<uint8_t> buffer;
  buffer.resize(in_place ? 0 : bytes);
  uint8_t* target = in_place ? rows_NW + static_cast<uint64_t>(rows.front().at) * width : buffer.data();
  RETURN_IF_ERROR(file.read(piece.place.offset, bytes, target));
  if (const uint64_t sum = base::checksum(target, bytes); sum != entry.checksum) {
    return absl::DataLossError(absl::StrFormat(
        "%s: bytes %d to %d (document %d of %s) are damaged: expected checksum %s, found %s", path, piece.place.offset,
        piece.place.offset + bytes, stretch.document, stretch.shard->path(), base::checksum_text(entry.checksum),
        base::checksum_text(sum)));
  }
  if (const absl::Status fit = check_rows(index_->manifest().rows, target, entry.rows); !fit.ok()) {
    return absl::DataLossError(absl::StrFormat(
        "%s: document %d of %s, %d tokens from %d on: %s", path, stretch.document, stretch.shard->path(), entry.tokens,
        entry.begin, std::string(fit.message())));
  }
  bytes_ += static_cast<int64_t>(bytes);
  for (int64_t i = 0; !in_place && i < count; ++i) {
    std::memcpy(
        rows_NW + static_cast<uint64_t>(rows[static_cast<size_t>(i)].at) * width,
        buffer.data() + static_cast<uint64_t>(skipped + i) * width, width);
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> CacheReader::read(const data::Batch& batch) const {
  const Clock::time_point start = Clock::now();
  std::vector<std::vector<Piece>> pieces(batch.stretches.size());
  const std::vector<uint64_t> contexts = contexts_of(batch);
  for (size_t i = 0; i < batch.stretches.size(); ++i) {
    if (!find(batch.stretches[i], contexts[i], pieces[i])) {
      return options_.partial ? absl::StatusOr<at::Tensor>(at::Tensor()) : no_rows(batch.stretches[i]);
    }
  }
  at::Tensor rows_NW = at::empty(
      {tokens_with_rows(batch), index_->manifest().rows.row_bytes()},
      at::TensorOptions().dtype(at::kByte).pinned_memory(options_.pin_memory));
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (const Piece& piece : pieces[i]) {
      RETURN_IF_ERROR(read_piece(batch, batch.stretches[i], piece, rows_NW.mutable_data_ptr<uint8_t>()));
    }
  }
  nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  return rows_NW;
}

CacheReader::Reading CacheReader::take_reading() {
  return {bytes_.exchange(0), 1e-9 * static_cast<double>(nanoseconds_.exchange(0))};
}

} // namespace distill::teacher_cache
