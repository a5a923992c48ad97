#pragma once

#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// A teacher of whom each token of the batch brings a few tokens of the vocabulary with their numbers
// (Batch::teacher_rows_NW): the most probable ones, or draws. Nothing of it is loaded.
class CachedTokenTeacher : public Teacher {
 public:
  explicit CachedTokenTeacher(const teacher_cache::RowFormat& rows) : rows_(rows) {}

  std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) override;
  losses::MetricQualities quality(const losses::LossOptions& loss) const override;

 private:
  teacher_cache::RowFormat rows_;
};

} // namespace distill::trainer
