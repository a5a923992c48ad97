#include "trainer/teacher_cache/manifest.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "losses/rows/sparse_args.h"

namespace distill::teacher_cache {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "distill-teacher-cache";
constexpr int kMaxDepth = 4;
constexpr int64_t kMaxSize = 1 << 26; // hidden size, vocabulary, sequence lengths
constexpr int64_t kMaxCount = int64_t{1} << 48;

Json data_json(const std::vector<DataFile>& data, bool paths) {
  Json list = Json::array();
  for (const DataFile& file : data) {
    Json entry;
    if (paths) {
      entry["path"] = file.path;
      entry["source"] = file.source;
      entry["eval"] = file.eval;
    }
    entry["header_hash"] = base::hex(file.header_hash);
    entry["documents"] = file.documents;
    entry["tokens"] = file.tokens;
    list.push_back(std::move(entry));
  }
  return list;
}

constexpr const char* kRanges = "column_ranges";
constexpr const char* kVocabulary = "vocabulary";
constexpr const char* kMasks = "masks_missing_tokens";
constexpr const char* kOwnTokenizer = "teacher_tokenizer_hash";

Json ranges_json(const losses::ColumnRanges& ranges) {
  Json list = Json::array();
  for (const auto& [begin, end] : ranges) {
    list.push_back({begin, end});
  }
  return list;
}

Json rows_json(const RowFormat& rows) {
  if (!rows.is_sparse()) {
    return {{"encoding", base::enum_name(rows.encoding)}, {"hidden_size", rows.hidden_size}};
  }
  Json json{
      {"kind", base::enum_name(rows.kind)},
      {"encoding", base::enum_name(rows.encoding)},
      {"entries", rows.entries},
      {"columns", rows.columns},
      {"temperature", rows.temperature},
      {"softcap", rows.softcap}};
  if (rows.kind == losses::TeacherKind::kSampled) {
    json["exponent"] = rows.exponent;
    json["seed"] = rows.seed;
  }
  return json;
}

// Writes the keys that are set, and no others.
Json keys_json(const TeacherKeys& keys) {
  Json json = Json::object();
  if (!keys.ignore_config_keys.empty()) {
    json["ignore_config_keys"] = keys.ignore_config_keys;
  }
  if (!keys.tokenizer.empty()) {
    json["tokenizer"] = keys.tokenizer;
  }
  if (keys.float8) {
    json["dtype"] = "float8";
  }
  if (!keys.float8_exceptions.empty()) {
    json["float8_exceptions"] = keys.float8_exceptions;
  }
  if (!keys.student_tokenizer.empty()) {
    json["student_tokenizer"] = keys.student_tokenizer;
  }
  if (!keys.token_pairs.empty()) {
    json["token_pairs"] = keys.token_pairs;
  }
  return json;
}

Json json_of(const Manifest& m, bool paths) {
  Json json{
      {"format", kFormat},
      {"version",
       m.own_tokenizer          ? kOwnTokensVersion
           : m.has_vocabulary() ? kVocabularyVersion
           : m.concat()         ? kConcatVersion
           : m.rows.is_sparse() ? kSparseVersion
                                : kFormatVersion}};
  if (m.has_vocabulary()) {
    json[kRanges] = ranges_json(m.rows.ranges);
    if (m.vocabulary) {
      json[kVocabulary] = base::hex(*m.vocabulary);
      json[kMasks] = m.masks;
    }
  }
  if (m.own_tokenizer) {
    json[kOwnTokenizer] = base::hex(*m.own_tokenizer);
  }
  if (m.has_order()) {
    json.update(Json{
        {"packing", base::enum_name(m.packing)},
        {"shuffle", m.shuffle},
        {"data_seed", m.data_seed},
        {"kind", base::enum_name(m.rows.kind)}});
  }
  json.update(rows_json(m.rows));
  json.update(Json{
      {"vocab_size", m.vocab_size},
      {"teacher_shape", m.teacher_shape},
      {"teacher_hash", base::hex(m.teacher_hash)},
      {"precision", m.precision},
      {"compute_dtype", m.compute_dtype},
      {"tokenizer_hash", m.tokenizer_hash}});
  if (m.head) {
    json["head"] = base::hex(*m.head);
  }
  json.update(Json{
      {"seq_len", m.seq_len},
      {"teacher_seq_len", m.teacher_seq_len},
      {"micro_batch_size", m.micro_batch_size},
      {"part_samples", m.part_samples},
      {"parts", m.parts},
      {"data", data_json(m.data, paths)}});
  if (paths) {
    json["teacher"] = m.teacher;
    if (m.teacher_keys != TeacherKeys{}) {
      json["teacher_keys"] = keys_json(m.teacher_keys);
    }
  }
  return json;
}

// Reads members of JSON that is not trusted, and remembers the first error.
class Reader {
 public:
  explicit Reader(const std::string& source) : source_(source) {}

  const absl::Status& status() const {
    return status_;
  }
  int64_t integer(const Json& object, const char* key, int64_t least, int64_t most) {
    const Json* value = member(object, key);
    const bool whole = value != nullptr && value->is_number_integer() &&
        !(value->is_number_unsigned() &&
          value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
    const int64_t number = whole ? value->get<int64_t>() : least - 1;
    if (number < least || number > most) {
      fail(key, absl::StrCat("expected an integer from ", least, " to ", most));
      return least;
    }
    return number;
  }
  std::string text(const Json& object, const char* key) {
    const Json* value = member(object, key);
    if (value == nullptr || !value->is_string()) {
      fail(key, "expected a text");
      return "";
    }
    return value->get<std::string>();
  }
  double number(const Json& object, const char* key) {
    const Json* value = member(object, key);
    if (value == nullptr || !value->is_number()) {
      fail(key, "expected a number");
      return 0;
    }
    return value->get<double>();
  }
  bool boolean(const Json& object, const char* key) {
    const Json* value = member(object, key);
    if (value == nullptr || !value->is_boolean()) {
      fail(key, "expected true or false");
      return false;
    }
    return value->get<bool>();
  }
  std::vector<std::string> texts(const Json& object, const char* key) { // absent: none
    const Json* value = member(object, key);
    std::vector<std::string> texts;
    const bool fits = value == nullptr ||
        (value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& v) { return v.is_string(); }));
    if (!fits) {
      fail(key, "expected a list of texts");
    } else if (value != nullptr) {
      texts = value->get<std::vector<std::string>>();
    }
    return texts;
  }
  base::Digest digest(const Json& object, const char* key) {
    const std::string hex = text(object, key);
    base::Digest digest{};
    const bool fits = hex.size() == 2 * digest.size() && hex.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!fits) {
      fail(key, absl::StrCat("expected ", 2 * digest.size(), " hexadecimal digits"));
      return digest;
    }
    for (size_t i = 0; i < digest.size(); ++i) {
      digest[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
    }
    return digest;
  }
  void fail(const std::string& key, const std::string& what) {
    if (status_.ok()) {
      status_ = absl::DataLossError(absl::StrCat(source_, ": ", key, ": ", what));
    }
  }

 private:
  static const Json* member(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() ? &*found : nullptr;
  }

  const std::string& source_;
  absl::Status status_;
};

losses::ColumnRanges read_ranges(const Json& json, Reader& read) {
  losses::ColumnRanges ranges;
  const auto list = json.find(kRanges);
  if (list == json.end() || !list->is_array()) {
    read.fail(kRanges, "expected a list");
    return ranges;
  }
  for (const Json& range : *list) {
    const bool fits = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
        range[1].is_number_unsigned() && range[1].get<uint64_t>() <= static_cast<uint64_t>(kMaxSize);
    if (!fits) {
      read.fail(kRanges, "expected pairs of ids");
      return {};
    }
    ranges.push_back({static_cast<int64_t>(range[0].get<uint64_t>()), range[1].get<int64_t>()});
  }
  if (!losses::are_columns(ranges, kMaxSize)) {
    read.fail(kRanges, "expected ascending ranges of ids");
  }
  return ranges;
}

std::vector<DataFile> read_data(const Json& json, Reader& read) {
  std::vector<DataFile> files;
  const auto list = json.find("data");
  if (list == json.end() || !list->is_array() || list->empty()) {
    read.fail("data", "expected a list of token shards");
    return files;
  }
  for (const Json& entry : *list) {
    DataFile file{read.text(entry, "path"), read.text(entry, "source"), read.boolean(entry, "eval")};
    file.header_hash = read.digest(entry, "header_hash");
    file.documents = read.integer(entry, "documents", 1, kMaxCount);
    file.tokens = read.integer(entry, "tokens", 1, kMaxCount);
    files.push_back(std::move(file));
  }
  return files;
}

TeacherKeys read_keys(const Json& json, Reader& read) {
  TeacherKeys keys;
  if (!json.is_object()) {
    read.fail("teacher_keys", "expected an object");
    return keys;
  }
  keys.ignore_config_keys = read.texts(json, "ignore_config_keys");
  keys.tokenizer = json.contains("tokenizer") ? read.text(json, "tokenizer") : "";
  if (json.contains("dtype") && read.text(json, "dtype") != "float8") {
    read.fail("dtype", "expected float8, or no member");
  }
  keys.float8 = json.contains("dtype");
  keys.float8_exceptions = read.texts(json, "float8_exceptions");
  keys.student_tokenizer = json.contains("student_tokenizer") ? read.text(json, "student_tokenizer") : "";
  keys.token_pairs = read.texts(json, "token_pairs");
  return keys;
}

template <typename Enum>
Enum read_name(const Json& json, const char* key, Reader& read) {
  const std::string name = read.text(json, key);
  const auto known = base::enum_named<Enum>(name);
  if (!known) {
    read.fail(key, absl::StrCat("expected ", base::enum_choices<Enum>()));
  }
  return known.value_or(Enum{});
}

RowFormat read_rows(const Json& json, int64_t version, Reader& read) {
  RowFormat rows;
  rows.encoding = read_name<Encoding>(json, "encoding", read);
  if (version != kFormatVersion) {
    rows.kind = read_name<losses::TeacherKind>(json, "kind", read);
  }
  if (!rows.is_sparse() && version != kSparseVersion) {
    rows.hidden_size = read.integer(json, "hidden_size", 1, kMaxSize);
    return rows;
  }
  if (!rows.is_sparse()) {
    read.fail("kind", "expected topk or sampled");
  }
  rows.entries = read.integer(json, "entries", 1, losses::kMaxEntries);
  rows.columns = read.integer(json, "columns", 1, kMaxSize);
  rows.temperature = read.number(json, "temperature");
  rows.softcap = read.number(json, "softcap");
  if (rows.kind == losses::TeacherKind::kSampled) {
    rows.exponent = read.number(json, "exponent");
    rows.seed = read.integer(json, "seed", 0, std::numeric_limits<int64_t>::max());
  }
  return rows;
}

} // namespace

base::Digest Manifest::id() const {
  const std::string text = json_of(*this, /*paths=*/false).dump();
  return base::sha256(text.data(), text.size());
}

std::string to_json(const Manifest& manifest) {
  return json_of(manifest, /*paths=*/true).dump(2) + "\n";
}

absl::StatusOr<Manifest> parse_manifest(std::string_view text, const std::string& source) {
  const auto json = base::parse_json(text, source, kMaxDepth);
  if (!json.ok()) {
    return absl::DataLossError(json.status().message());
  }
  Reader read(source);
  if (read.text(*json, "format") != kFormat) {
    return absl::DataLossError(absl::StrCat(source, ": format: expected ", kFormat));
  }
  const int64_t version = read.integer(*json, "version", 0, kMaxCount);
  if (version < kFormatVersion || version > kOwnTokensVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        source, ": version: expected ", kFormatVersion, " to ", kOwnTokensVersion, ", found ", version,
        "; this program reads no other version: capture again"));
  }
  Manifest manifest;
  manifest.rows = read_rows(*json, version, read);
  if (version == kVocabularyVersion) {
    manifest.rows.ranges = read_ranges(*json, read);
    if (json->contains(kVocabulary)) {
      manifest.vocabulary = read.digest(*json, kVocabulary);
      manifest.masks = read.boolean(*json, kMasks);
    }
  }
  if (version == kOwnTokensVersion) {
    manifest.own_tokenizer = read.digest(*json, kOwnTokenizer);
    if (manifest.rows.is_sparse()) {
      read.fail("kind", "expected hidden");
    }
  }
  manifest.vocab_size = read.integer(*json, "vocab_size", 1, kMaxSize);
  manifest.teacher = read.text(*json, "teacher");
  if (json->contains("teacher_keys")) {
    manifest.teacher_keys = read_keys(json->at("teacher_keys"), read);
  }
  manifest.teacher_shape = read.text(*json, "teacher_shape");
  manifest.teacher_hash = read.digest(*json, "teacher_hash");
  manifest.precision = read.text(*json, "precision");
  manifest.compute_dtype = read.text(*json, "compute_dtype");
  if (manifest.compute_dtype != "float32" && manifest.compute_dtype != "bfloat16") {
    read.fail("compute_dtype", "expected float32 or bfloat16");
  }
  manifest.tokenizer_hash = read.text(*json, "tokenizer_hash");
  if (json->contains("head")) {
    manifest.head = read.digest(*json, "head");
  }
  manifest.seq_len = read.integer(*json, "seq_len", 2, kMaxSize);
  manifest.teacher_seq_len = read.integer(*json, "teacher_seq_len", 0, kMaxSize);
  manifest.micro_batch_size = read.integer(*json, "micro_batch_size", 0, kMaxSize);
  manifest.part_samples = read.integer(*json, "part_samples", 0, kMaxCount);
  manifest.parts = read.integer(*json, "parts", 0, kMaxCount);
  manifest.data = read_data(*json, read);
  if (version >= kConcatVersion) {
    manifest.packing = read_name<data::PackingMode>(*json, "packing", read);
    if (!manifest.concat() && version == kConcatVersion) {
      read.fail("packing", "expected concat");
    }
    if (manifest.concat() && version == kOwnTokensVersion) {
      read.fail("packing", "expected pack");
    }
    manifest.shuffle = read.boolean(*json, "shuffle");
    manifest.data_seed = read.integer(*json, "data_seed", 0, std::numeric_limits<int64_t>::max());
  }
  RETURN_IF_ERROR(read.status());
  if (const absl::Status rows = validate(manifest.rows); !rows.ok()) {
    return absl::DataLossError(absl::StrCat(source, ": ", std::string(rows.message())));
  }
  return manifest;
}

std::vector<std::string> differences(const Manifest& expected, const Manifest& found) {
  const Json wanted = json_of(expected, /*paths=*/false), has = json_of(found, /*paths=*/false);
  std::vector<std::string> lines;
  // The members of another kind's rows differ because `kind` does.
  const bool same_kind = expected.rows.kind == found.rows.kind;
  if (!same_kind) {
    lines.push_back(absl::StrCat(
        "kind: expected ", base::enum_name(expected.rows.kind), ", found ", base::enum_name(found.rows.kind)));
  }
  if (expected.packing != found.packing) {
    lines.push_back(absl::StrCat(
        "packing: expected ", base::enum_name(expected.packing), ", found ", base::enum_name(found.packing)));
  }
  for (const char* key : {kRanges, kVocabulary, kOwnTokenizer}) { // which few caches have
    const Json value = wanted.value(key, Json()), other = has.value(key, Json());
    if (value != other && (value.is_null() || other.is_null())) {
      lines.push_back(absl::StrCat(key, ": expected ", value.dump(), ", found ", other.dump()));
    }
  }
  for (const auto& [key, value] : wanted.items()) {
    // These keys follow from the kind and the packing.
    if (!has.contains(key) || has.at(key) == value || key == "version" || key == "kind") {
      continue;
    }
    if (key == "data") {
      const auto text = [](const Manifest& m) {
        const std::string all = data_json(m.data, /*paths=*/false).dump();
        return absl::StrCat(
            m.data.size(), " token shards with sha256 ", base::hex(base::sha256(all.data(), all.size())));
      };
      lines.push_back(absl::StrCat("data: expected ", text(expected), ", found ", text(found)));
    } else {
      lines.push_back(absl::StrCat(key, ": expected ", value.dump(), ", found ", has.at(key).dump()));
    }
  }
  return lines;
}

} // namespace distill::teacher_cache
