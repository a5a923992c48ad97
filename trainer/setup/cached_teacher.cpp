#include "trainer/setup/cached_teacher.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"
#include "trainer/models/renumbered_weights.h"
#include "trainer/models/units.h"
#include "trainer/setup/disk_space.h"
#include "trainer/setup/read_model.h"

namespace distill::trainer {
namespace {

using teacher_cache::Encoding;
using teacher_cache::Manifest;

absl::StatusOr<Encoding> encoding_of(config::CacheDtype dtype, at::ScalarType compute_dtype) {
  switch (dtype) {
    case config::CacheDtype::kFloat16:
      return Encoding::kFloat16;
    case config::CacheDtype::kFloat32:
      return Encoding::kFloat32;
    case config::CacheDtype::kBFloat16:
      return Encoding::kBFloat16;
    case config::CacheDtype::kInt8:
      return Encoding::kInt8;
    case config::CacheDtype::kAuto:
      break;
  }
  if (const auto exact = teacher_cache::exact_encoding(compute_dtype)) {
    return *exact;
  }
  return absl::InvalidArgumentError("cache.dtype: expected float32, bfloat16 or int8 for this teacher");
}

losses::TeacherKind kind_of(config::CacheKind kind) {
  switch (kind) {
    case config::CacheKind::kTopK:
      return losses::TeacherKind::kTopK;
    case config::CacheKind::kSampled:
      return losses::TeacherKind::kSampled;
    case config::CacheKind::kHidden:
      break;
  }
  return losses::TeacherKind::kHidden;
}

// The format of rows of a few tokens. Where the configuration names a student, these are tokens that it has, too.
absl::StatusOr<teacher_cache::RowFormat> sparse_format(const config::Config& config, const TeacherSpec& spec) {
  const models::ModelConfig& teacher = spec.model().config;
  const config::CacheSection& cache = config.cache;
  teacher_cache::RowFormat rows;
  rows.kind = kind_of(cache.kind);
  rows.columns = teacher.vocab_size;
  if (!config.student.path.empty()) {
    ASSIGN_OR_RETURN(const models::ModelConfig student, read_student(config));
    const losses::ColumnRanges ranges = spec.column_ranges(student.vocab_size);
    rows.columns = ranges.back().end;
    rows.ranges = ranges == losses::ColumnRanges{{0, rows.columns}} ? losses::ColumnRanges() : ranges;
  }
  rows.temperature = config.loss.temperature;
  rows.softcap = teacher.final_softcap;
  rows.encoding = Encoding::kFloat32;
  if (rows.kind == losses::TeacherKind::kTopK) {
    rows.encoding = cache.dtype == config::CacheDtype::kFloat32 ? Encoding::kFloat32 : Encoding::kFloat16;
    rows.entries = cache.topk;
    if (const int64_t columns = losses::count_columns(rows.column_ranges()); rows.entries > columns) {
      return absl::InvalidArgumentError(
          absl::StrFormat("cache.topk: expected at most the vocabulary, %d tokens, found %d", columns, rows.entries));
    }
  } else {
    rows.entries = cache.samples;
    rows.exponent = cache.exponent;
    rows.seed = cache.seed;
  }
  return rows;
}

// The precision in which a teacher computes, with the products that a float8 teacher computes in another one: all that
// decides its rows apart from the weights.
std::string precision_of(const models::ModelConfig& teacher, at::ScalarType dtype) {
  const std::string text = models::precision_text(teacher, dtype);
  const std::vector<std::string> exceptions = models::exceptions_of(teacher.float8, models::block_products(teacher));
  return teacher.float8.any() && !exceptions.empty() ? absl::StrCat(text, ", all but ", absl::StrJoin(exceptions, ", "))
                                                     : text;
}

// Adds a problem for each property of a cache of a few tokens that does not fit the run's loss or student.
void check_sparse(
    const config::Config& config, const teacher_cache::RowFormat& rows, int64_t student_vocab,
    base::ProblemList& problems) {
  const auto same = [&](const char* key, double found, double captured) {
    if (found != captured) {
      problems.add(absl::StrFormat(
          "%s: expected %g, at which the cache %s of the kind %s was captured, found %g; another one needs the kind "
          "hidden, or another capture",
          key, captured, config.teacher.cache, base::enum_name(rows.kind), found));
    }
  };
  same("loss.temperature", config.loss.temperature, rows.temperature);
  if (config.softcaps.teacher != config::kAutomatic) {
    same("loss.teacher_softcap", config.softcaps.teacher, rows.softcap);
  }
  if (student_vocab > 0 && rows.columns > student_vocab) {
    problems.add(absl::StrFormat(
        "teacher.cache: %s: expected tokens of the student's vocabulary, %d, found those of %d; capture with "
        "student.path set to this student, or import with its --vocab-size",
        config.teacher.cache, student_vocab, rows.columns));
  }
}

// Lists every token shard once.
std::vector<teacher_cache::DataFile> data_files(absl::Span<const std::shared_ptr<data::Dataset>> data) {
  std::vector<teacher_cache::DataFile> files;
  for (size_t i = 0; i < data.size(); ++i) {
    for (const data::Shard* shard : data[i]->shards()) {
      teacher_cache::DataFile file{shard->path(), data[i]->source_of(*shard), /*eval=*/i > 0};
      file.documents = shard->documents();
      file.tokens = shard->tokens();
      std::copy_n(shard->header().header_hash, file.header_hash.size(), file.header_hash.begin());
      const bool is_new = std::none_of(
          files.begin(), files.end(), [&](const auto& other) { return other.header_hash == file.header_hash; });
      if (is_new) {
        files.push_back(std::move(file));
      }
    }
  }
  return files;
}

} // namespace

absl::StatusOr<teacher_cache::RowFormat> row_format(
    const config::Config& config, const Environment& environment, const TeacherSpec& teacher) {
  if (config.cache.kind != config::CacheKind::kHidden) {
    return sparse_format(config, teacher);
  }
  ASSIGN_OR_RETURN(const Encoding encoding, encoding_of(config.cache.dtype, environment.teacher_dtype));
  teacher_cache::RowFormat rows{encoding, teacher.model().config.hidden_size};
  if (teacher.vocabulary().renumbered() && !teacher.vocabulary().aligned) {
    rows.ranges = teacher.vocabulary().columns;
  }
  return rows;
}

absl::StatusOr<Manifest> make_manifest(
    const config::Config& config, const Environment& environment, const TeacherSpec& spec,
    absl::Span<const std::shared_ptr<data::Dataset>> data) {
  const models::ModelConfig& teacher = spec.model().config;
  Manifest manifest;
  ASSIGN_OR_RETURN(manifest.rows, row_format(config, environment, spec));
  manifest.vocab_size = teacher.vocab_size;
  manifest.teacher = config.teacher.path;
  const config::ModelSection& section = config.teacher;
  manifest.teacher_keys = {section.ignore_config_keys, section.tokenizer, teacher.float8.any()};
  if (spec.vocabulary().aligned) {
    manifest.own_tokenizer = data.front()->shards().front()->teacher_tokenizer_hash();
    manifest.vocab_size = spec.vocabulary().folder_rows;
    manifest.teacher_keys.student_tokenizer =
        config.student.tokenizer.empty() ? config.student.path : config.student.tokenizer;
    manifest.teacher_keys.token_pairs = section.token_pairs;
  } else if (spec.vocabulary().renumbered()) {
    manifest.vocabulary = spec.vocabulary().rows_hash();
    manifest.masks = config.teacher.missing_tokens == config::MissingTokens::kMask;
  }
  if (teacher.float8.any()) {
    manifest.teacher_keys.float8_exceptions = models::exceptions_of(teacher.float8, models::block_products(teacher));
  }
  manifest.teacher_shape = describe_shape(teacher);
  ASSIGN_OR_RETURN(manifest.teacher_hash, teacher_cache::teacher_hash(config));
  manifest.precision = precision_of(teacher, environment.teacher_dtype);
  manifest.compute_dtype = models::precision_text({}, environment.teacher_dtype);
  manifest.tokenizer_hash = base::hex(data.front()->tokenizer_hash());
  manifest.seq_len = config.data.seq_len;
  for (const auto& set : data) {
    manifest.teacher_seq_len = std::max(manifest.teacher_seq_len, set->teacher_seq_len());
  }
  manifest.data = data_files(data);
  manifest.packing = config.data.packing;
  if (manifest.concat()) {
    manifest.shuffle = config.data.shuffle;
    manifest.data_seed = config.data.shuffle ? config.data.seed : 0;
  }
  return manifest;
}

absl::Status check_cache_head(const config::Config& config) {
  for (const config::Config& own : config::configs_of_teachers(config)) {
    if (own.has_teacher() && own.teacher.reads_cache()) {
      ASSIGN_OR_RETURN(const Manifest manifest, teacher_cache::read_manifest(own.teacher.cache));
      RETURN_IF_ERROR(teacher_cache::check_head(own.teacher.cache, manifest));
    }
  }
  return absl::OkStatus();
}

void share_head(const sharding::Mesh& mesh, Manifest& manifest) {
  if (mesh.host == nullptr) {
    return;
  }
  base::Digest digest = mesh.is_main() ? manifest.head.value_or(base::Digest{}) : base::Digest{};
  at::Tensor sums =
      at::zeros({static_cast<int64_t>(digest.size()) + 1}, at::kLong); // the bytes, and whether it has one
  int64_t* values = sums.mutable_data_ptr<int64_t>();
  std::copy(digest.begin(), digest.end(), values);
  values[digest.size()] = mesh.is_main() && manifest.head ? 1 : 0;
  mesh.host->all_reduce(sums);
  std::transform(values, values + digest.size(), digest.begin(), [](int64_t v) { return static_cast<uint8_t>(v); });
  manifest.head = values[digest.size()] != 0 ? std::optional(digest) : std::nullopt;
}

teacher_cache::TeacherHead gather_head(
    sharding::ModelShards& teacher, const teacher_cache::RowFormat& rows, const Vocabulary& vocabulary, bool keep) {
  if (rows.is_sparse()) {
    return {};
  }
  const int64_t unit = teacher.head_unit();
  teacher_cache::TeacherHead head;
  const auto copy = [&](at::Tensor weight, at::Tensor& kept) {
    kept = keep ? weight.cpu() : at::Tensor();
    weight.reset();
    teacher.release(unit);
  };
  copy(teacher.lm_head_weight(), head.lm_head_VG);
  copy(teacher.final_norm_weight(), head.final_norm_G);
  teacher.retire(unit);
  if (keep && vocabulary.aligned) {
    head.lm_head_VG = models::in_source_order(head.lm_head_VG, vocabulary.rows, vocabulary.folder_rows);
  }
  return head;
}

absl::StatusOr<std::shared_ptr<const teacher_cache::Index>> open_cache(
    const config::Config& config, const Environment& environment, const TeacherSpec& teacher, int64_t student_vocab,
    absl::Span<const base::Digest> tokenizers) {
  ASSIGN_OR_RETURN(std::shared_ptr<const teacher_cache::Index> index, teacher_cache::Index::open(config.teacher.cache));
  const teacher_cache::Manifest& manifest = index->manifest();
  base::ProblemList problems;
  const auto expect = [&](const std::string& what, const std::string& expected, const std::string& found) {
    if (expected != found) {
      problems.add(absl::StrCat(
          "teacher.cache: ", config.teacher.cache, ": ", what, ": expected ", expected, ", found ", found));
    }
  };
  const losses::TeacherKind kind = kind_of(config.cache.kind);
  if (kind != manifest.rows.kind) {
    problems.add(absl::StrFormat(
        "cache.kind: expected %s, which the cache %s has, found %s; set cache.kind: %s",
        base::enum_name(manifest.rows.kind), config.teacher.cache, base::enum_name(kind),
        base::enum_name(manifest.rows.kind)));
  }
  problems.add(teacher_cache::check_head_list(config.teacher.cache, manifest));
  const bool sparse = manifest.rows.is_sparse();
  if (sparse) {
    check_sparse(config, manifest.rows, student_vocab, problems);
  }
  const models::ModelConfig& head = teacher.model().config; // with the loaded rows
  const int64_t vocab_size = teacher.vocabulary().renumbered() ? teacher.vocabulary().folder_rows : head.vocab_size;
  const int64_t hidden_size = sparse ? head.hidden_size : manifest.rows.hidden_size; // of a row
  expect(
      "hidden size and vocabulary of its head/config.json", absl::StrCat(hidden_size, " and ", manifest.vocab_size),
      absl::StrCat(head.hidden_size, " and ", vocab_size));
  const bool known = std::any_of(tokenizers.begin(), tokenizers.end(), [&](const base::Digest& hash) {
    return base::hex(hash) == manifest.tokenizer_hash;
  });
  if (!tokenizers.empty() && !known) {
    expect("tokenizer_hash, against the student's tokenizer", base::hex(tokenizers[0]), manifest.tokenizer_hash);
  }
  const std::string dtype = models::precision_text({}, environment.teacher_dtype);
  if (!sparse && dtype != manifest.compute_dtype) {
    problems.add(absl::StrFormat(
        "teacher.dtype: expected %s, in which %s was captured, found %s; set teacher.dtype: %s", manifest.compute_dtype,
        config.teacher.cache, dtype, manifest.compute_dtype));
  }
  if (!config.teacher.path.empty()) {
    const auto hash = problems.take(teacher_cache::teacher_hash(config));
    if (hash) {
      expect(
          absl::StrCat("teacher_hash, against teacher.path ", config.teacher.path), base::hex(*hash),
          base::hex(manifest.teacher_hash));
    }
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  return index;
}

absl::StatusOr<std::shared_ptr<teacher_cache::CacheReader>> attach_rows(
    const config::Config& config, const Environment& environment, std::shared_ptr<const teacher_cache::Index> index,
    data::Dataset& data, const std::string& key, bool partial) {
  teacher_cache::RowsOptions options;
  options.data_key = key;
  options.partial = partial;
  // Of a run with several teachers, only what this one's rows are of.
  const bool several = data.options().teachers.size() > 1 && data.options().only_teacher < 0;
  options.teacher = several ? config.this_teacher : -1;
  options.other_contexts = config.cache.other_contexts == config::OtherContexts::kAllow;
  options.pin_memory = environment.device.is_cuda();
  ASSIGN_OR_RETURN(
      std::shared_ptr<teacher_cache::CacheReader> rows,
      teacher_cache::CacheReader::open(std::move(index), data, options));
  data.read_teacher_rows(rows, std::max<int64_t>(0, options.teacher));
  return rows;
}

std::string describe_cache(const std::string& role, const teacher_cache::Index& index) {
  const teacher_cache::Manifest& manifest = index.manifest();
  const int64_t width = manifest.rows.row_bytes();
  return absl::StrFormat(
      "%s: from the cache %s, %s, %d bytes a token; %d parts, %d tokens, %.3g GB; of %s (computed in %s), "
      "captured in sequences of %d%s%s",
      role, index.folder(), describe(manifest.rows), width, index.parts(), index.rows(),
      1e-9 * static_cast<double>(index.rows() * width), manifest.teacher, manifest.precision, manifest.seq_len,
      manifest.concat() ? ", cut from one stream of documents" : "",
      manifest.own_tokenizer ? ", in its own tokens" : "");
}

} // namespace distill::trainer
