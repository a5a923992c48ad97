#pragma once

#include <optional>

#include "trainer/teacher/aligned_teacher.h"
#include "trainer/teacher/teacher.h"

namespace distill::trainer {

// A teacher whose final hidden states come with the batch (Batch::teacher_rows_NW), and whose lm_head is loaded.
class CachedHiddenTeacher : public Teacher {
 public:
  // `head`: a model without blocks, which outlives this object.
  CachedHiddenTeacher(
      const config::Config& config, sharding::ModelShards& head, const teacher_cache::RowFormat& rows,
      const Vocabulary& vocabulary);

  std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& tokens, sharding::ModelShards& next) override;
  void release() override;
  void prefetch_first() override;
  losses::MetricQualities quality(const losses::LossOptions& loss) const override;

 private:
  sharding::ModelShards& head_;
  teacher_cache::RowFormat rows_;
  losses::ColumnRanges columns_;
  std::optional<AlignedHead> aligned_; // of a teacher with a tokenizer of its own, whose rows are of its own tokens
};

} // namespace distill::trainer
