#include "trainer/tools/inspect_cache.h"

#include <ATen/ATen.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>

#include "data/base/checksum.h"
#include "data/base/mapped_file.h"
#include "data/base/status_macros.h"
#include "data/shard.h"
#include "data/token_limits.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/models/units.h"
#include "trainer/setup/read_model.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/step/loaded_models.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/index.h"
#include "trainer/teacher_cache/row_places.h"
#include "trainer/teacher_cache/sparse_format.h"
#include "trainer/tools/inspect_documents.h"

// R rows of a stretch, W bytes of a row, K entries, V vocabulary, G hidden size.
namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using teacher_cache::DataFile;
using teacher_cache::Manifest;
using teacher_cache::StretchPlace;

constexpr int64_t kShownEntries = 5; // most probable tokens of a row

std::string line(const char* name, const std::string& text) {
  return absl::StrFormat("%-16s %s\n", name, text);
}

// Opens the shard that a file of the manifest was; the error tells what is wrong if it is not that any more.
absl::StatusOr<data::Shard> open_captured(const DataFile& file) {
  auto shard = data::Shard::open(file.path);
  if (!shard.ok()) {
    return absl::FailedPreconditionError(std::string(shard.status().message()));
  }
  if (!std::equal(file.header_hash.begin(), file.header_hash.end(), shard->header().header_hash)) {
    return absl::FailedPreconditionError(absl::StrCat(file.path, ": was changed after the capture"));
  }
  return shard;
}

// The tokens of a shard that are no columns of a cache's distributions, from which on documents have no targets.
data::TokenLimits without_columns(const teacher_cache::RowFormat& rows, const data::Shard& shard) {
  data::TokenLimits limits;
  int64_t id = 0;
  for (const auto& [begin, end] : rows.ranges) {
    for (; id < begin; ++id) {
      limits.documents.masked.push_back(id);
    }
    id = end;
  }
  for (; id < static_cast<int64_t>(shard.header().vocab_size); ++id) {
    limits.documents.masked.push_back(id);
  }
  return limits;
}

struct Covered {
  int64_t documents = 0; // those that have a row, or a stretch without a target
  int64_t rows = 0;
};

Covered covered_by(const teacher_cache::Index& index, uint32_t shard) {
  Covered covered;
  const auto documents = static_cast<uint32_t>(index.manifest().data[shard].documents);
  for (uint32_t document = 0; document < documents; ++document) {
    const auto places = index.document(shard, document);
    covered.documents += places.empty() ? 0 : 1;
    for (const StretchPlace& place : places) {
      covered.rows += place.entry.rows;
    }
  }
  return covered;
}

std::string parts_text(const teacher_cache::Index& index) {
  const int64_t width = index.manifest().rows.row_bytes(), promised = index.manifest().parts;
  return absl::StrFormat(
      "%d of %d bytes (%.3g MB) in %d parts%s", index.rows(), width, 1e-6 * static_cast<double>(index.rows() * width),
      index.parts(),
      promised > index.parts() ? absl::StrFormat(" of %d: the capture is not complete", promised) : std::string());
}

std::string describe_cache_folder(const teacher_cache::Index& index) {
  const Manifest& manifest = index.manifest();
  std::string text = line("teacher's cache", index.folder());
  absl::StrAppend(&text, line("a row", describe(manifest.rows)), line("rows", parts_text(index)));
  absl::StrAppend(&text, line("teacher", manifest.teacher), line("", manifest.teacher_shape));
  absl::StrAppend(&text, line("computed in", manifest.precision));
  absl::StrAppend(
      &text,
      line(
          "sequences",
          absl::StrCat(
              manifest.seq_len, " tokens",
              manifest.teacher_seq_len > 0
                  ? absl::StrCat(", of which the teacher read a text of its own in ", manifest.teacher_seq_len)
                  : "",
              manifest.concat() ? ", cut from one stream of documents" : ", of whole documents")),
      line("tokenizer hash", manifest.tokenizer_hash));
  if (manifest.own_tokenizer) {
    absl::StrAppend(
        &text,
        line(
            "", absl::StrCat(base::hex(*manifest.own_tokenizer), " of the teacher, whose rows are of its own tokens")));
  }
  for (uint32_t number = 0; number < manifest.data.size(); ++number) {
    const DataFile& file = manifest.data[number];
    const Covered covered = covered_by(index, number);
    const absl::Status there = open_captured(file).status();
    absl::StrAppend(
        &text,
        line(
            file.eval ? "data.eval" : "data.train",
            absl::StrFormat(
                "%s: %d documents, %d tokens; %d rows of %d documents%s", file.path, file.documents, file.tokens,
                covered.rows, covered.documents,
                there.ok() ? std::string() : absl::StrCat(" (", std::string(there.message()), ")"))));
  }
  return text;
}

// The prediction of the next token in a row.
struct Prediction {
  std::vector<std::pair<int64_t, double>> likely; // ids with their probabilities, the largest first
  std::string rest;
};

// Turns the bytes of rows into predictions.
class RowReader {
 public:
  static absl::StatusOr<RowReader> open(const std::string& cache, const Manifest& manifest) {
    RowReader reader(manifest.rows);
    if (manifest.rows.is_sparse()) {
      return reader;
    }
    config::Config config;
    config.teacher.source = config::TeacherSource::kCache;
    config.teacher.cache = cache;
    config.train.dtype = config::RunDtype::kFloat32;
    ModelSource head;
    ASSIGN_OR_RETURN(head.config, read_teacher_model(config));
    ASSIGN_OR_RETURN(head.weights, hf::open_weights(config.teacher.folder(), head.config, /*notes=*/nullptr));
    ASSIGN_OR_RETURN(reader.teacher_, load_model(environment_on(config, at::kCPU), head, Role::kTeacher));
    return reader;
  }

  std::vector<Prediction> read(const at::Tensor& rows_RW) {
    return format_.kind == losses::TeacherKind::kTopK ? of_topk(rows_RW)
        : format_.is_sparse()                         ? of_draws(rows_RW)
                                                      : of_hidden(rows_RW);
  }

 private:
  explicit RowReader(const teacher_cache::RowFormat& format) : format_(format) {}

  static Prediction largest(std::vector<std::pair<int64_t, double>> all) {
    const auto shown = std::min<int64_t>(kShownEntries, static_cast<int64_t>(all.size()));
    std::partial_sort(
        all.begin(), all.begin() + shown, all.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    all.resize(static_cast<size_t>(shown));
    return {std::move(all), ""};
  }

  std::vector<Prediction> of_topk(const at::Tensor& rows_RW) const {
    const teacher_cache::SparseRows rows = teacher_cache::decode_sparse(format_, rows_RW);
    const at::Tensor ids_RK = rows.ids_RK.to(at::kLong), probabilities_RK = rows.values_RK.to(at::kDouble).exp();
    std::vector<Prediction> predictions;
    for (int64_t row = 0; row < rows_RW.size(0); ++row) {
      std::vector<std::pair<int64_t, double>> all;
      for (int64_t k = 0; k < ids_RK.size(1); ++k) {
        if (const auto id = ids_RK[row][k].item<int64_t>(); id >= 0) {
          all.emplace_back(id, probabilities_RK[row][k].item<double>());
        }
      }
      Prediction& prediction = predictions.emplace_back(largest(all));
      prediction.rest = absl::StrFormat(
          "%d tokens are stored, all others have %.3g%%", all.size(), 100 * rows.tail_R[row].item<double>());
    }
    return predictions;
  }

  std::vector<Prediction> of_draws(const at::Tensor& rows_RW) const {
    const teacher_cache::SparseRows rows = teacher_cache::decode_sparse(format_, rows_RW);
    const at::Tensor ids_RK = rows.ids_RK.to(at::kLong), weights_RK = rows.values_RK.to(at::kDouble);
    std::vector<Prediction> predictions;
    for (int64_t row = 0; row < rows_RW.size(0); ++row) {
      std::map<int64_t, double> weights;
      for (int64_t k = 0; k < ids_RK.size(1); ++k) {
        weights[ids_RK[row][k].item<int64_t>()] += weights_RK[row][k].item<double>();
      }
      Prediction& prediction = predictions.emplace_back(largest({weights.begin(), weights.end()}));
      prediction.rest = absl::StrFormat("%d draws of %d different tokens", ids_RK.size(1), weights.size());
    }
    return predictions;
  }

  std::vector<Prediction> of_hidden(const at::Tensor& rows_RW) {
    const int64_t unit = teacher_->head_unit();
    const at::Tensor lm_head_VG = teacher_->lm_head_weight();
    const at::Tensor hidden_RG = teacher_cache::decode(format_, rows_RW, at::kFloat);
    std::vector<Prediction> predictions;
    for (int64_t row = 0; row < rows_RW.size(0); ++row) { // one at a time: a large vocabulary has large logits
      const at::Tensor hidden_G = hidden_RG[row];
      const at::Tensor probabilities_V = at::mv(lm_head_VG, hidden_G).to(at::kDouble).softmax(0);
      const auto [values_K, ids_K] = probabilities_V.topk(std::min(kShownEntries, probabilities_V.size(0)), /*dim=*/0);
      Prediction& prediction = predictions.emplace_back();
      for (int64_t k = 0; k < ids_K.size(0); ++k) {
        prediction.likely.emplace_back(ids_K[k].item<int64_t>(), values_K[k].item<double>());
      }
      prediction.rest = absl::StrFormat("norm of the hidden state %.4g", hidden_G.norm().item<double>());
    }
    teacher_->release(unit);
    return predictions;
  }

  teacher_cache::RowFormat format_;
  std::unique_ptr<sharding::ModelShards> teacher_; // of hidden states: its lm_head
};

// A document of the cache's data, found by its number among all documents of the manifest.
struct CachedDocument {
  int64_t number = 0;
  uint32_t shard = 0;
  int64_t document = 0; // within the shard
};

bool is_same(const StretchPlace& a, const StretchPlace& b) {
  return a.entry.begin == b.entry.begin && a.entry.tokens == b.entry.tokens && a.entry.context == b.entry.context;
}

class DocumentPrinter {
 public:
  DocumentPrinter(const teacher_cache::Index& index, const data::TokenText* text, RowReader reader)
      : index_(index), text_(text), reader_(std::move(reader)) {}

  absl::StatusOr<std::string> print(const CachedDocument& place, int64_t max_tokens) {
    ASSIGN_OR_RETURN(data::Shard shard, open_captured(index_.manifest().data[place.shard]));
    if (index_.manifest().masks) {
      RETURN_IF_ERROR(data::leave_out_masked(shard, without_columns(index_.manifest().rows, shard)).status());
    }
    ASSIGN_OR_RETURN(const std::vector<int64_t> ids, tokens_of(shard, place.document));
    const auto all = index_.document(place.shard, static_cast<uint32_t>(place.document));
    std::vector<StretchPlace> stretches; // data.train and data.eval may have the same document
    std::unique_copy(all.begin(), all.end(), std::back_inserter(stretches), is_same);
    std::string out = absl::StrFormat(
        "document %d of %s: %d tokens%s, %s\n", place.number, fs::path(shard.path()).filename().string(), ids.size(),
        has_own_tokens() ? " of the teacher's own" : "",
        stretches.empty()
            ? "no row in the cache"
            : absl::StrCat(stretches.size(), stretches.size() == 1 ? " stretch" : " stretches", " in the cache"));
    const auto limit = max_tokens > 0 ? max_tokens : static_cast<int64_t>(ids.size());
    for (const StretchPlace& stretch : stretches) {
      RETURN_IF_ERROR(print_stretch(shard, place.document, stretch, ids, limit, out));
    }
    if (limit < static_cast<int64_t>(ids.size())) {
      absl::StrAppendFormat(&out, "... %d more tokens (--tokens 0 shows all)\n", ids.size() - limit);
    }
    return out;
  }

 private:
  bool has_own_tokens() const { // the teacher: rows are of its text
    return index_.manifest().own_tokenizer.has_value();
  }

  // The tokens whose predictions are in the cache.
  absl::StatusOr<std::vector<int64_t>> tokens_of(const data::Shard& shard, int64_t document) const {
    std::vector<int64_t> ids(
        static_cast<size_t>(has_own_tokens() ? shard.teacher_length(document) : shard.document_length(document)));
    RETURN_IF_ERROR(
        has_own_tokens() ? shard.read_teacher_tokens(shard.teacher_begin(document), absl::MakeSpan(ids))
                         : shard.read_tokens(shard.document_begin(document), absl::MakeSpan(ids)));
    return ids;
  }

  // The places of a stretch's rows among them. A row belongs to a token with a target: the next token is in the loss.
  // The last token of a document that another one follows in the stream may have one, too.
  std::vector<int64_t> places_of(
      const data::Shard& shard, int64_t document, const StretchPlace& stretch, int64_t length) const {
    std::vector<int64_t> places;
    if (has_own_tokens()) {
      places = teacher_cache::own_text_rows(shard, document, length);
      places.resize(std::min<size_t>(places.size(), stretch.entry.rows));
      return places;
    }
    const auto begin = static_cast<int64_t>(stretch.entry.begin), end = begin + stretch.entry.tokens;
    for (int64_t at = begin; at < std::min(end, length - 1); ++at) {
      if (shard.has_target(shard.document_begin(document) + at + 1)) {
        places.push_back(at);
      }
    }
    if (places.size() < stretch.entry.rows) {
      places.push_back(length - 1);
    }
    return places;
  }

  std::string token(int64_t id) const {
    if (text_ == nullptr) {
      return absl::StrCat(id);
    }
    const std::string text = text_->text({id});
    const std::string* spelling = text_->token(id);
    return absl::StrCat("\"", absl::Utf8SafeCEscape(!text.empty() || spelling == nullptr ? text : *spelling), "\"");
  }

  absl::StatusOr<at::Tensor> rows_of(const StretchPlace& stretch) const {
    const std::string path = teacher_cache::part_path(index_.folder(), stretch.part);
    ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path));
    const int64_t width = index_.manifest().rows.row_bytes();
    const std::string_view bytes = file.text().substr(stretch.offset, stretch.entry.rows * static_cast<size_t>(width));
    if (base::checksum(bytes.data(), bytes.size()) != stretch.entry.checksum) {
      return absl::DataLossError(absl::StrCat(
          path, ": ", bytes.size(), " bytes from ", stretch.offset, " on are damaged; `distill verify ",
          index_.folder(), "` checks all of the cache"));
    }
    const at::Tensor rows_RW = at::empty({stretch.entry.rows, width}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), rows_RW.mutable_data_ptr<uint8_t>());
    return rows_RW;
  }

  // Prints the tokens of a stretch with their predictions.
  absl::Status print_stretch(
      const data::Shard& shard, int64_t document, const StretchPlace& stretch, const std::vector<int64_t>& ids,
      int64_t limit, std::string& out) {
    const auto length = static_cast<int64_t>(ids.size());
    const auto begin = static_cast<int64_t>(stretch.entry.begin);
    const std::vector<int64_t> places = places_of(shard, document, stretch, length);
    const int64_t end = has_own_tokens() ? (places.empty() ? 1 : places.back() + 2) : begin + stretch.entry.tokens;
    ASSIGN_OR_RETURN(const at::Tensor rows_RW, rows_of(stretch));
    if (places.size() != stretch.entry.rows) {
      return absl::DataLossError(absl::StrFormat(
          "%s: document %d of %s: expected %d rows for %d tokens from %d on, found %d", index_.folder(), document,
          shard.path(), places.size(), stretch.entry.tokens, begin, stretch.entry.rows));
    }
    absl::StrAppendFormat(
        &out, "-- tokens %d to %d, part %d, %d rows: place, token, target, what the teacher expects --\n", begin,
        end - 1, stretch.part, places.size());
    const auto shown = std::lower_bound(places.begin(), places.end(), limit) - places.begin();
    const std::vector<Prediction> predictions = reader_.read(rows_RW.narrow(0, 0, shown));
    for (int64_t i = 0; i < shown; ++i) {
      const int64_t at = places[static_cast<size_t>(i)];
      const Prediction& prediction = predictions[static_cast<size_t>(i)];
      const std::string likely =
          absl::StrJoin(prediction.likely, ", ", [this](std::string* text, const std::pair<int64_t, double>& entry) {
            absl::StrAppendFormat(text, "%.1f%% %s", 100 * entry.second, token(entry.first));
          });
      absl::StrAppendFormat(
          &out, "%5d  %s -> %s   %s; %s\n", at, token(ids[static_cast<size_t>(at)]),
          at + 1 < length ? token(ids[static_cast<size_t>(at + 1)]) : "the next document", likely, prediction.rest);
    }
    return absl::OkStatus();
  }

  const teacher_cache::Index& index_;
  const data::TokenText* text_; // null: ids alone
  RowReader reader_;
};

// Opens the tokenizer that was named, or else the cache's own, if it has one.
absl::StatusOr<std::optional<data::TokenText>> tokenizer_of(const InspectRequest& request, const Manifest& manifest) {
  const fs::path own = fs::path(request.path) / teacher_cache::kHeadFolder / "tokenizer.json";
  std::error_code error;
  const bool named = !request.tokenizer.empty();
  if (!named && !fs::exists(own, error)) {
    return std::optional<data::TokenText>();
  }
  auto text = data::TokenText::read(named ? request.tokenizer : own.string());
  if (!text.ok()) {
    return named ? absl::StatusOr<std::optional<data::TokenText>>(text.status()) : std::optional<data::TokenText>();
  }
  const std::string expected = manifest.own_tokenizer ? base::hex(*manifest.own_tokenizer) : manifest.tokenizer_hash;
  if (base::hex(text->tokenizer_hash()) != expected) {
    if (!named) {
      return std::optional<data::TokenText>();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokenizer: expected the tokenizer of the cache's data (hash ", expected, "), found ", text->path(),
        " (hash ", base::hex(text->tokenizer_hash()), ")"));
  }
  return std::optional(*std::move(text));
}

} // namespace

absl::StatusOr<std::string> inspect_cache(const InspectRequest& request) {
  if (!request.html.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--html: expected a token shard or a folder of them, found the teacher's cache ", request.path,
        ", whose rows are shown on the terminal alone"));
  }
  ASSIGN_OR_RETURN(const auto index, teacher_cache::Index::open(request.path, /*partial=*/true));
  const bool chosen = request.document || !request.documents.empty();
  if (!chosen) {
    return absl::StrCat(
        describe_cache_folder(*index),
        "hint: --document I shows a document with the teacher's prediction at each token\n");
  }
  const Manifest& manifest = index->manifest();
  int64_t total = 0;
  for (const DataFile& file : manifest.data) {
    total += file.documents;
  }
  ASSIGN_OR_RETURN(const DocumentRange range, chosen_documents(request, total));
  ASSIGN_OR_RETURN(const auto text, tokenizer_of(request, manifest));
  ASSIGN_OR_RETURN(RowReader reader, RowReader::open(request.path, manifest));
  DocumentPrinter printer(*index, text ? &*text : nullptr, std::move(reader));
  std::string out;
  int64_t first = 0; // document of the shard
  for (uint32_t shard = 0; shard < manifest.data.size(); ++shard) {
    const int64_t end = first + manifest.data[shard].documents;
    for (int64_t number = std::max(first, range.first); number < std::min(end, range.first + range.count); ++number) {
      ASSIGN_OR_RETURN(const std::string shown, printer.print({number, shard, number - first}, range.max_tokens));
      absl::StrAppend(&out, out.empty() ? "" : "\n", shown);
    }
    first = end;
  }
  return out;
}

} // namespace distill::trainer
