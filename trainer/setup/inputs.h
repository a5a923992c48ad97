#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <vector>

#include "data/dataset.h"
#include "losses/head/chunk_policy.h"
#include "trainer/config/config.h"
#include "trainer/config/load.h"
#include "trainer/onpolicy/round_data.h"
#include "trainer/setup/cached_teacher.h"
#include "trainer/setup/sample_inputs.h"
#include "trainer/step/environment.h"
#include "trainer/teacher/teacher_spec.h"

namespace distill::trainer {

// Models, data and loss head of a run, opened and checked against each other; no weight has been read.
struct Inputs {
  models::ModelSource student;
  Teachers teachers;
  std::shared_ptr<data::Dataset> train_data; // null for evaluation; for config::Purpose::kQuantize with data.eval
  std::shared_ptr<data::Dataset> eval_data; // null without data.eval
  std::vector<std::string> teacher_texts; // the teachers' lines of the start report
  losses::ChunkPlan head; // for one micro-batch
  std::vector<std::string> vocabulary_texts; // lines of the start report about tokens without a part in the loss
  std::optional<onpolicy::RoundInputs> onpolicy; // of an on-policy run, for training
  std::optional<SampleInputs> samples; // with eval.samples, for training
};

// Checks model folders and their tensors, tokenizers, data and the loss head's memory. Reports all problems together.
absl::StatusOr<Inputs> open_inputs(
    const config::Config& config, const Environment& environment, config::Purpose purpose);

// What `distill capture` reads: the teacher, and all documents of a run's data sets once, in their order.
struct CaptureInputs {
  TeacherSpec teacher;
  std::vector<std::shared_ptr<data::Dataset>> data; // data.train, then data.eval where there is some
};
absl::StatusOr<CaptureInputs> open_capture_inputs(const config::Config& config, const Environment& environment);
// The data alone. `tokenizers`: hashes of the run's, where known. `alignment`: of a teacher with a tokenizer of its
// own.
absl::StatusOr<std::vector<std::shared_ptr<data::Dataset>>> open_capture_data(
    const config::Config& config, const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits,
    bool pin_memory, std::shared_ptr<const data::TextAlignment> alignment);

} // namespace distill::trainer
