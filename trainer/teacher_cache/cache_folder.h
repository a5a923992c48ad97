#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "data/base/checksum.h"
#include "trainer/config/config.h"
#include "trainer/models/model_config.h"
#include "trainer/teacher_cache/manifest.h"
#include "trainer/teacher_cache/part_file.h"

// The folder of a cache: manifest.json, part-NNNNNNNN.dtc, and head/, a Hugging Face folder with what a run needs of
// the teacher besides the rows: config.json, tokenizer, final norm and lm_head.
namespace distill::teacher_cache {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kHeadFolder = "head";

std::string part_path(const std::string& folder, int64_t part);

// Lists the numbers of the parts that are complete, ascending, by their names alone.
absl::StatusOr<std::vector<int64_t>> complete_parts(const std::string& folder);

// NotFound: the folder is no cache. Other errors are those of parse_manifest.
absl::StatusOr<Manifest> read_manifest(const std::string& folder);

// Returns a hash that tells the model in teacher.path from others: of its config.json and weights, of which only
// samples are read (hf::folder_fingerprint: of a file above 1 MiB both ends and blocks in between), and of the seed of
// random ones. A change of a few weights may go unseen. NotFound or DataLoss: the folder.
absl::StatusOr<base::Digest> teacher_hash(const config::Config& config);

// Makes the folder a cache with this manifest; the head is there already, and is the manifest's. If it is a cache, its
// manifest must be the same but for paths: FailedPrecondition lists the differences, with both values.
absl::Status begin_cache(const std::string& folder, const Manifest& manifest);

// The weights that a cache of hidden states keeps of a teacher, in its compute dtype, on the CPU; undefined for other
// kinds, whose rows are read without them.
struct TeacherHead {
  at::Tensor lm_head_VG;
  at::Tensor final_norm_G;
};
// Whose tokens the head has.
struct HeadVocabulary {
  const config::ModelSection* tokenizer = nullptr; // of this model
  int64_t rows = 0; // of the tables, which config.json gets; 0: those of the teacher's config.json
};
// Writes head/ anew, with the config.json of the teacher's folder and the tokenizer; a folder that is a cache already
// keeps its own, which is checked. Returns Manifest::head. Errors are those of check_head, or name the file.
absl::StatusOr<std::optional<base::Digest>> write_head(
    const std::string& folder, const config::ModelSection& teacher, const TeacherHead& head,
    const HeadVocabulary& vocabulary);

// Returns the SHA-256 of the bytes of head/checksums.xxh3, which has a checksum of each other file. NotFound or
// DataLoss: the list.
absl::StatusOr<base::Digest> head_hash(const std::string& folder);

// Compares head/ with the one that was written with this cache by its list of checksums alone; manifests without
// Manifest::head have nothing to compare. DataLoss: it is another.
absl::Status check_head_list(const std::string& folder, const Manifest& manifest);

// Checks head/ as check_head_list does, and reads all of its files. DataLoss also names each that is missing or
// damaged.
absl::Status check_head(const std::string& folder, const Manifest& manifest, const base::ReadProgress& progress = {});

// Returns the model in head/: the teacher without its blocks, whose final norm and lm_head are one unit.
models::ModelConfig head_only(models::ModelConfig teacher);

// DataLoss: a part belongs to another cache, or to other data, with documents or tokens that its shards do not have.
// `path` is named.
absl::Status check_part(const PartIndex& index, const Manifest& manifest, int64_t part, const std::string& path);

// FailedPrecondition: one of the parts that the manifest promises is missing. `parts`: those that are there.
absl::Status check_complete(const std::string& folder, const Manifest& manifest, const std::vector<int64_t>& parts);

struct VerifiedCache {
  int64_t parts = 0;
  int64_t rows = 0;
  int64_t bytes = 0;
};
// Reads a whole cache and compares all checksums. DataLoss lists all damaged and missing files.
absl::StatusOr<VerifiedCache> verify_cache(const std::string& folder, const base::ReadProgress& progress = {});

} // namespace distill::teacher_cache
