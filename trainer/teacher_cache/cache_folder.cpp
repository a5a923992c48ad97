#include "trainer/teacher_cache/cache_folder.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/base/durable_file.h"
#include "data/base/json.h"
#include "data/base/mapped_file.h"
#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/hf/fingerprint.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/safetensors.h"
#include "trainer/hf/save_model.h"
#include "trainer/teacher_cache/sparse_format.h"

namespace distill::teacher_cache {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;
constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr int64_t kMaxListBytes = int64_t{1} << 20;
constexpr int kMaxConfigDepth = 32;
constexpr std::string_view kPartPrefix = "part-";
constexpr std::string_view kPartSuffix = ".dtc";

absl::Status failed(const fs::path& path, const char* action, const std::error_code& error) {
  return absl::InternalError(absl::StrCat(path.string(), ": cannot ", action, ": ", error.message()));
}

// Returns the number of a complete part's file; -1: the file is another.
int64_t part_number(const std::string& name) {
  if (!name.starts_with(kPartPrefix) || !name.ends_with(kPartSuffix)) {
    return -1;
  }
  const char* end = name.data() + name.size() - kPartSuffix.size();
  int64_t number = -1;
  const auto result = std::from_chars(name.data() + kPartPrefix.size(), end, number);
  const bool plain = result.ec == std::errc() && result.ptr == end && number >= 0;
  return plain && fs::path(part_path("", number)).filename() == name ? number : -1;
}

// Returns config.json without the keys that the run was told to ignore: a run from the cache need not be told again.
// `rows`: of the tables; 0: those that it has.
absl::StatusOr<std::string> config_text(const config::ModelSection& teacher, int64_t rows) {
  const std::string path = teacher.path + "/config.json";
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(path, kMaxConfigBytes));
  ASSIGN_OR_RETURN(nlohmann::ordered_json json, base::parse_json(text, path, kMaxConfigDepth));
  for (const std::string& key : teacher.ignore_config_keys) {
    json.erase(key);
  }
  if (rows > 0) {
    const auto text_model = json.find("text_config"); // of a multimodal folder
    (text_model != json.end() && text_model->is_object() ? *text_model : json)["vocab_size"] = rows;
  }
  return json.dump(2) + "\n";
}

absl::Status copy_tokenizer(const config::ModelSection& model, const fs::path& target) {
  std::error_code error;
  const fs::path named = model.tokenizer.empty() ? model.path : model.tokenizer;
  if (!fs::is_directory(named, error)) {
    fs::copy_file(named, target / "tokenizer.json", error);
    return error ? failed(target / "tokenizer.json", "copy", error) : absl::OkStatus();
  }
  return hf::copy_tokenizer_files(named.string(), target.string());
}

// Compares the rows of every stretch of a part with their checksums.
absl::Status verify_part(
    const std::string& path, int64_t part, const Manifest& manifest, VerifiedCache& verified,
    const base::ReadProgress& progress) {
  ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path));
  ASSIGN_OR_RETURN(const PartIndex index, parse_part(file.text(), path));
  RETURN_IF_ERROR(check_part(index, manifest, part, path));
  for (size_t i = 0; i < index.stretches.size(); ++i) {
    const StretchEntry& entry = index.stretches[i];
    const uint64_t bytes = entry.rows * index.head.row_bytes, begin = index.offsets[i];
    const uint64_t sum = base::checksum(file.bytes() + begin, bytes);
    if (sum != entry.checksum) {
      return absl::DataLossError(absl::StrFormat(
          "%s: bytes %d to %d (document %d, %d tokens from %d on) are damaged: expected checksum %s, found %s", path,
          begin, begin + bytes, entry.document, entry.tokens, entry.begin, base::checksum_text(entry.checksum),
          base::checksum_text(sum)));
    }
    if (const absl::Status fit = check_rows(manifest.rows, file.bytes() + begin, entry.rows); !fit.ok()) {
      return absl::DataLossError(absl::StrFormat(
          "%s: document %d, %d tokens from %d on: %s", path, entry.document, entry.tokens, entry.begin,
          std::string(fit.message())));
    }
    file.release(begin, begin + bytes);
    verified.rows += entry.rows;
    if (progress) {
      progress(static_cast<int64_t>(bytes));
    }
  }
  ++verified.parts;
  verified.bytes += static_cast<int64_t>(file.size());
  return absl::OkStatus();
}

} // namespace

std::string part_path(const std::string& folder, int64_t part) {
  return absl::StrFormat("%s/%s%08d%s", folder, kPartPrefix, part, kPartSuffix);
}

absl::StatusOr<std::vector<int64_t>> complete_parts(const std::string& folder) {
  std::vector<int64_t> parts;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (const int64_t number = part_number(it->path().filename().string()); number >= 0) {
      parts.push_back(number);
    }
  }
  if (error) {
    return failed(folder, "list", error);
  }
  std::sort(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<Manifest> read_manifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestFile);
  const auto text = base::read_text_file(path, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        folder, ": expected the folder of a teacher's cache (", kManifestFile,
        "), found none; `distill capture` writes one"));
  }
  RETURN_IF_ERROR(text.status());
  return parse_manifest(*text, path);
}

absl::StatusOr<base::Digest> teacher_hash(const config::Config& config) {
  ASSIGN_OR_RETURN(std::string text, hf::folder_fingerprint(config.teacher.path));
  if (!config.teacher.adapter.empty()) {
    ASSIGN_OR_RETURN(const std::string adapter, hf::folder_fingerprint(config.teacher.adapter));
    absl::StrAppend(&text, "with the adapter\n", adapter);
  }
  if (config.teacher.init == config::ModelInit::kRandom) {
    absl::StrAppend(&text, "random from seed ", config.train.seed, "\n");
  }
  return base::sha256(text.data(), text.size());
}

absl::Status begin_cache(const std::string& folder, const Manifest& manifest) {
  const auto found = read_manifest(folder);
  if (absl::IsNotFound(found.status())) {
    return base::replace_file(absl::StrCat(folder, "/", kManifestFile), to_json(manifest));
  }
  RETURN_IF_ERROR(found.status());
  const std::vector<std::string> lines = differences(manifest, *found);
  return lines.empty() ? absl::OkStatus()
                       : absl::FailedPreconditionError(absl::StrCat(
                             folder, " is the cache of something else; name another teacher.cache, or remove it:\n  ",
                             absl::StrJoin(lines, "\n  ")));
}

absl::StatusOr<base::Digest> head_hash(const std::string& folder) {
  const std::string list = absl::StrCat(folder, "/", kHeadFolder, "/", hf::kChecksumsFile);
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(list, kMaxListBytes));
  return base::sha256(text.data(), text.size());
}

absl::Status check_head_list(const std::string& folder, const Manifest& manifest) {
  if (!manifest.head) {
    return absl::OkStatus();
  }
  const auto found = head_hash(folder);
  if (!found.ok()) {
    return absl::DataLossError(found.status().message());
  }
  return *found == *manifest.head
      ? absl::OkStatus()
      : absl::DataLossError(absl::StrFormat(
            "%s/%s: is not the head of this cache: expected a %s with sha256 %s (head in %s), found %s", folder,
            kHeadFolder, hf::kChecksumsFile, base::hex(*manifest.head), kManifestFile, base::hex(*found)));
}

absl::Status check_head(const std::string& folder, const Manifest& manifest, const base::ReadProgress& progress) {
  RETURN_IF_ERROR(check_head_list(folder, manifest));
  return hf::verify_model_folder(absl::StrCat(folder, "/", kHeadFolder), progress).status();
}

absl::StatusOr<std::optional<base::Digest>> write_head(
    const std::string& folder, const config::ModelSection& teacher, const TeacherHead& head,
    const HeadVocabulary& vocabulary) {
  const auto found = read_manifest(folder);
  if (!absl::IsNotFound(found.status())) {
    RETURN_IF_ERROR(found.status());
    RETURN_IF_ERROR(check_head(folder, *found));
    return found->head;
  }
  const fs::path target = fs::path(folder) / kHeadFolder, partial = target.string() + ".partial";
  std::error_code error;
  fs::remove_all(partial, error);
  if (!error) {
    fs::create_directories(partial, error);
  }
  if (error) {
    return failed(partial, "create", error);
  }
  ASSIGN_OR_RETURN(const std::string config, config_text(teacher, vocabulary.rows));
  RETURN_IF_ERROR(base::write_file((partial / "config.json").string(), config));
  RETURN_IF_ERROR(copy_tokenizer(*vocabulary.tokenizer, partial));
  if (head.lm_head_VG.defined()) {
    RETURN_IF_ERROR(hf::write_safetensors(
        (partial / "model.safetensors").string(),
        {{"lm_head.weight", head.lm_head_VG}, {"model.norm.weight", head.final_norm_G}}, {{"format", "pt"}}));
  }
  RETURN_IF_ERROR(hf::write_checksums(partial.string()));
  RETURN_IF_ERROR(base::publish_folder(partial.string(), target.string()));
  ASSIGN_OR_RETURN(const base::Digest hash, head_hash(folder));
  return std::optional(hash);
}

models::ModelConfig head_only(models::ModelConfig teacher) {
  teacher.layers.clear();
  teacher.tie_word_embeddings = true;
  teacher.float8 = {};
  return teacher;
}

absl::Status check_part(const PartIndex& index, const Manifest& manifest, int64_t part, const std::string& path) {
  const base::Digest id = manifest.id();
  base::Digest found;
  std::copy_n(index.head.cache_id, found.size(), found.begin());
  if (found != id || static_cast<int64_t>(index.head.part) != part ||
      static_cast<int64_t>(index.head.row_bytes) != manifest.rows.row_bytes()) {
    return absl::DataLossError(absl::StrFormat(
        "%s: is a part of another cache: expected part %d of cache %s with rows of %d bytes, found part %d of cache %s "
        "with rows of %d bytes",
        path, part, base::hex(id), manifest.rows.row_bytes(), index.head.part, base::hex(found), index.head.row_bytes));
  }
  for (const StretchEntry& entry : index.stretches) {
    if (entry.shard >= manifest.data.size() || entry.document >= manifest.data[entry.shard].documents) {
      return absl::DataLossError(absl::StrFormat(
          "%s: expected stretches of the documents of %d token shards, found document %d of shard %d", path,
          manifest.data.size(), entry.document, entry.shard));
    }
    const auto tokens = static_cast<uint64_t>(manifest.data[entry.shard].tokens);
    if (entry.begin > tokens || entry.tokens > tokens - entry.begin) {
      return absl::DataLossError(absl::StrFormat(
          "%s: document %d of shard %d: expected tokens of the shard's %d, found %d tokens from %d on", path,
          entry.document, entry.shard, tokens, entry.tokens, entry.begin));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<VerifiedCache> verify_cache(const std::string& folder, const base::ReadProgress& progress) {
  ASSIGN_OR_RETURN(const Manifest manifest, read_manifest(folder));
  ASSIGN_OR_RETURN(const std::vector<int64_t> parts, complete_parts(folder));
  base::ProblemList problems;
  VerifiedCache verified;
  problems.add(check_head(folder, manifest, progress));
  for (const int64_t part : parts) {
    problems.add(verify_part(part_path(folder, part), part, manifest, verified, progress));
  }
  problems.add(check_complete(folder, manifest, parts));
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kDataLoss));
  return verified;
}

absl::Status check_complete(const std::string& folder, const Manifest& manifest, const std::vector<int64_t>& parts) {
  for (int64_t part = 0; part < manifest.parts; ++part) {
    if (!std::binary_search(parts.begin(), parts.end(), part)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s: the cache is not complete: expected parts 0 to %d, found %d of them, without part %d; run `distill "
          "capture` again, which goes on where it stopped",
          folder, manifest.parts - 1, parts.size(), part));
    }
  }
  return absl::OkStatus();
}

} // namespace distill::teacher_cache
