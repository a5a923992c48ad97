#pragma once

#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// A model that runs. If it reads tokens of its own, each of the student's tokens with a target gets the hidden state
// from which the teacher predicts the same target.
class RunningTeacher : public Teacher {
 public:
  // `model` outlives this object. `columns`: Vocabulary::columns.
  RunningTeacher(
      const config::Config& config, sharding::ModelShards& model, losses::ColumnRanges columns,
      models::BlockFunctions block);

  std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) override;
  void release() override;
  std::vector<sharding::Pass> passes() const override;
  void prefetch_first() override;
  losses::MetricQualities quality(const losses::LossOptions& loss) const override;
  const WholeModel* whole_model() const override {
    return &whole_;
  }

 private:
  at::Tensor hidden(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next); // [N, G]

  sharding::ModelShards& model_;
  losses::ColumnRanges columns_;
  int64_t rows_; // rows_if_beyond()
  std::vector<models::RopeTable> ropes_;
  models::BlockFunctions block_;
  WholeModel whole_;
};

} // namespace distill::trainer
