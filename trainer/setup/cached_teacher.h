#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>

#include "data/dataset.h"
#include "trainer/config/config.h"
#include "trainer/models/model_config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"
#include "trainer/step/environment.h"
#include "trainer/teacher/teacher_spec.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/cache_reader.h"

// A teacher whose predictions are read from the folder teacher.cache.
namespace distill::trainer {

// Opens teacher.cache and checks it against the run: complete, with its own head/, of this tokenizer and kind, computed
// in the dtype that the run gives the teacher or at the loss's temperature, and where teacher.path is given, of that
// teacher. One error has all problems, each with both values. `student_vocab`: 0: not known; `tokenizers`: hashes of
// the run's, of which the cache must have one; empty: not checked.
absl::StatusOr<std::shared_ptr<const teacher_cache::Index>> open_cache(
    const config::Config& config, const Environment& environment, const TeacherSpec& teacher, int64_t student_vocab,
    absl::Span<const base::Digest> tokenizers);

// How a capture stores the rows of a teacher. InvalidArgument names the key, or the student's folder.
absl::StatusOr<teacher_cache::RowFormat> row_format(
    const config::Config& config, const Environment& environment, const TeacherSpec& teacher);

// The manifest of a teacher's predictions for data sets. The division of a capture into parts is not set.
absl::StatusOr<teacher_cache::Manifest> make_manifest(
    const config::Config& config, const Environment& environment, const TeacherSpec& teacher,
    absl::Span<const std::shared_ptr<data::Dataset>> data);

// Checks the head/ of the cache if the run reads its teacher from one. DataLoss: head/ is damaged, or belongs to
// another cache (check_head). Reads all of head/, so that it suffices to call it on one rank.
absl::Status check_cache_head(const config::Config& config);

// Gives all ranks the Manifest::head of rank 0. All ranks call it together.
void share_head(const sharding::Mesh& mesh, teacher_cache::Manifest& manifest);

// Gathers the part of a teacher that a cache with such rows keeps, its tables in the order in which they were loaded,
// and those of a teacher with a tokenizer of its own in the order of its folder. All ranks that share the teacher call
// it together. `keep`: whether this rank gets the result.
teacher_cache::TeacherHead gather_head(
    sharding::ModelShards& teacher, const teacher_cache::RowFormat& rows, const Vocabulary& vocabulary, bool keep);

// Lets `data` read its teacher's rows from the cache. `key`: of the data set, for messages. `partial`: rows may be
// missing. Errors as CacheReader::open.
absl::StatusOr<std::shared_ptr<teacher_cache::CacheReader>> attach_rows(
    const config::Config& config, const Environment& environment, std::shared_ptr<const teacher_cache::Index> index,
    data::Dataset& data, const std::string& key, bool partial = false);

// "teacher: work/cache, bfloat16 hidden states of 4096, 8192 bytes a token; 12 parts, 1234567 tokens, 10.1 GB; of ..."
// `role`: config::text_of_teacher().
std::string describe_cache(const std::string& role, const teacher_cache::Index& index);

} // namespace distill::trainer
