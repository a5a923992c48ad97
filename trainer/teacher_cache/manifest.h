#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/base/sha256.h"
#include "data/packing_mode.h"
#include "trainer/teacher_cache/part_file.h"
#include "trainer/teacher_cache/row_format.h"

// The manifest.json of a cache: the form of its rows, the teacher and the data that they are of.
namespace distill::teacher_cache {

// The format version of caches of hidden states; those of a few tokens, which came later, have the next one, and those
// of concatenated documents, of any kind, the third.
inline constexpr int64_t kFormatVersion = 1;
inline constexpr int64_t kSparseVersion = 2;
inline constexpr int64_t kConcatVersion = 3;
inline constexpr int64_t kVocabularyVersion = 4; // of a teacher whose distribution is not over its first tokens

inline constexpr int64_t kOwnTokensVersion = 5; // of hidden states of a teacher's own tokens

// The keys of the configuration that `distill verify` needs to compute rows again.
struct TeacherKeys {
  std::vector<std::string> ignore_config_keys;
  std::string tokenizer; // path; empty: the teacher's folder
  bool float8 = false; // teacher.dtype
  std::vector<std::string> float8_exceptions;
  // Of rows of the teacher's own tokens:
  std::string student_tokenizer; // path
  std::vector<std::string> token_pairs;

  bool operator==(const TeacherKeys&) const = default;
};

// A token shard whose documents may be in the cache.
struct DataFile {
  std::string path; // the path at the time of the capture
  std::string source; // the item of data.train or data.eval that it belongs to
  bool eval = false; // of data.eval
  base::Digest header_hash{}; // which covers a hash of all tokens and loss masks
  int64_t documents = 0;
  int64_t tokens = 0;
};

struct Manifest {
  RowFormat rows;
  int64_t vocab_size = 0; // rows of the teacher's lm_head, which a cache of hidden states has in head/
  // Where the teacher has been loaded with the student's numbers of its tokens: Vocabulary::rows_hash(). The tables in
  // head/ have this order, and the tokenizer there is the student's.
  std::optional<base::Digest> vocabulary;
  bool masks = false; // with such an order: documents have no targets from a token on that the teacher lacks
  std::string teacher; // folder that it was read from
  TeacherKeys teacher_keys; // no part of the identity, like paths
  std::string teacher_shape; // text
  base::Digest teacher_hash{}; // of samples of the model's files (teacher_hash() in cache_folder.h)
  std::string precision; // text: what the teacher computed in
  std::string compute_dtype; // float32 or bfloat16: of the lm_head in head/
  std::string tokenizer_hash; // of the token shards
  // Where the rows are of tokens of a teacher with a tokenizer of its own (teacher.alignment: bytes): the tokenizer of
  // the token shards' other texts, which head/ has. The tables in head/ have the order of the teacher's folder.
  std::optional<base::Digest> own_tokenizer;
  std::optional<base::Digest> head; // head_hash() of the folder; nullopt: the program that wrote it did not record it
  int64_t seq_len = 0; // of the sequences that were captured, tokens
  int64_t teacher_seq_len = 0; // of those that the teacher read, with a teacher stream; 0: it read the same
  int64_t micro_batch_size = 0; // samples that were computed at once; 0: not in the order of the data
  int64_t part_samples = 0; // samples in the order of the data that a part has; 0: not in this order
  int64_t parts = 0; // files that a complete cache has; 0: as many as there are
  data::PackingMode packing = data::PackingMode::kPack;
  bool shuffle = false; // of concatenated documents: data.shuffle, and data.seed where it is set
  int64_t data_seed = 0;
  std::vector<DataFile> data;

  // Whether the form of the manifest is that of kVocabularyVersion.
  bool has_vocabulary() const {
    return vocabulary.has_value() || !rows.ranges.empty();
  }
  // Whether it has the members that came with kConcatVersion.
  bool has_order() const {
    return concat() || has_vocabulary() || own_tokenizer.has_value();
  }
  bool concat() const {
    return packing == data::PackingMode::kConcat;
  }
  // True: the rows were written in no order of the data, by an import or by a training run of an earlier version
  // (teacher.source: capture). Then the parts alone tell which documents are there.
  bool open_ended() const {
    return parts == 0;
  }
  uint32_t part_version() const { // of its files
    return concat() ? kContextVersion : kPartVersion;
  }
  // Returns a hash of everything but paths.
  base::Digest id() const;
};

std::string to_json(const Manifest& manifest);

// Reads a manifest that is not trusted. DataLoss names `source` and the problem. FailedPrecondition: it has another
// format version; both are named.
absl::StatusOr<Manifest> parse_manifest(std::string_view text, const std::string& source);

// Returns a line "key: expected ..., found ..." for everything but paths in which the two differ. The data is compared
// as a whole.
std::vector<std::string> differences(const Manifest& expected, const Manifest& found);

} // namespace distill::teacher_cache
