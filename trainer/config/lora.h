#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>

#include "trainer/config/config.h"
#include "trainer/hf/notes.h"
#include "trainer/hf/peft_config.h"
#include "trainer/models/weight_source.h"

namespace distill::config {

// The adapter that a run trains: that of student.adapter, or the one that student.lora describes.
absl::StatusOr<hf::PeftConfig> student_adapter(const Config& config);

// Finds its modules in the student, and the teacher's, that of teacher.adapter, in the teacher. Errors name the key or
// the file.
absl::StatusOr<models::AdapterSpec> resolve_student_adapter(const Config& config, const models::ModelConfig& student);
absl::StatusOr<models::AdapterSpec> resolve_teacher_adapter(const Config& config, const models::ModelConfig& teacher);

// Opens the weights of a model's folder or, with init: random, those drawn from the seed. `model`: without an adapter.
// `notes`: as of hf::open_weights.
absl::StatusOr<std::shared_ptr<const models::WeightSource>> open_weights(
    const ModelSection& section, const models::ModelConfig& model, int64_t seed, hf::Notes* notes = nullptr);

// A hash of the weights that an adapter belongs to: of the model's files, as hf::folder_fingerprint samples them, and
// of the seed of random weights.
absl::StatusOr<std::string> base_hash(const ModelSection& model, int64_t seed);

// The same of all models that a run reads and its checkpoints do not hold, by key: the base of the student's adapters
// (student.path), the teachers and their adapters.
absl::StatusOr<std::map<std::string, std::string>> hashes_beside_checkpoints(const Config& config);

} // namespace distill::config
