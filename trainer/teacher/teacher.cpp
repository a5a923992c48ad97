#include "trainer/teacher/teacher.h"

#include "trainer/teacher/cached_hidden_teacher.h"
#include "trainer/teacher/cached_token_teacher.h"
#include "trainer/teacher/running_teacher.h"

namespace distill::trainer {
namespace {

// The labels alone.
class NoTeacher : public Teacher {
 public:
  std::vector<Prediction> predict(
      const data::Batch& batch, const sharding::TokenBatch& /*tokens*/, sharding::ModelShards& /*next*/) override {
    return {of_all_tokens(batch)};
  }
  losses::MetricQualities quality(const losses::LossOptions& loss) const override {
    return losses::available_metrics(losses::TeacherKind::kNone, loss);
  }
};

} // namespace

Prediction of_all_tokens(const data::Batch& batch) {
  Prediction all{.tokens = batch.targets_BS.numel()};
  all.head.valid_tokens = batch.valid_tokens;
  return all;
}

std::unique_ptr<Teacher> make_teacher(
    const config::Config& config, const LoadedTeacher& teacher, models::BlockFunctions block) {
  if (!teacher.spec.exists()) {
    return std::make_unique<NoTeacher>();
  }
  if (!teacher.spec.rows()) {
    return std::make_unique<RunningTeacher>(
        config, *teacher.weights.front(), teacher.spec.vocabulary(), std::move(block));
  }
  if (teacher.weights.empty()) {
    return std::make_unique<CachedTokenTeacher>(*teacher.spec.rows());
  }
  return std::make_unique<CachedHiddenTeacher>(
      config, *teacher.weights.front(), *teacher.spec.rows(), teacher.spec.vocabulary());
}

} // namespace distill::trainer
