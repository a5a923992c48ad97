#pragma once

#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// A teacher whose final hidden states come with the batch (Batch::teacher_rows_NW), and whose lm_head is loaded.
class CachedHiddenTeacher : public Teacher {
 public:
  // `head`: a model without blocks, which outlives this object. `columns`: Vocabulary::columns.
  CachedHiddenTeacher(sharding::ModelShards& head, const teacher_cache::RowFormat& rows, losses::ColumnRanges columns)
      : head_(head), rows_(rows), columns_(std::move(columns)) {}

  std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) override;
  void release() override;
  void prefetch_first() override;
  losses::MetricQualities quality(const losses::LossOptions& loss) const override;

 private:
  sharding::ModelShards& head_;
  teacher_cache::RowFormat rows_;
  losses::ColumnRanges columns_;
};

} // namespace distill::trainer
