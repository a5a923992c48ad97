#pragma once

#include "trainer/teacher/aligned_teacher.h"
#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// A model that runs. If it reads tokens of its own, each of the student's tokens with a target gets the hidden state
// from which the teacher predicts the same target.
class RunningTeacher : public Teacher {
 public:
  // `model` outlives this object.
  RunningTeacher(
      const config::Config& config, sharding::ModelShards& model, const Vocabulary& vocabulary,
      models::BlockFunctions block);

  std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) override;
  void release() override;
  std::vector<sharding::Pass> passes() const override;
  void prefetch_first() override;
  losses::MetricQualities quality(const losses::LossOptions& loss) const override;
  // One with a tokenizer of its own cannot continue the student's tokens.
  const WholeModel* whole_model() const override {
    return aligned_ ? nullptr : &whole_;
  }

 private:
  at::Tensor hidden(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next); // [N, G]
  Prediction predict_aligned(const data::Batch& batch, sharding::ModelShards& next);

  sharding::ModelShards& model_;
  losses::ColumnRanges columns_;
  std::optional<AlignedHead> aligned_; // of a teacher with a tokenizer of its own
  int64_t rows_; // rows_if_beyond()
  std::vector<models::RopeTable> ropes_;
  models::BlockFunctions block_;
  WholeModel whole_;
};

} // namespace distill::trainer
