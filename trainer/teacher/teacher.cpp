#include "trainer/teacher/teacher.h"

#include "trainer/teacher/cached_hidden_teacher.h"
#include "trainer/teacher/cached_token_teacher.h"
#include "trainer/teacher/running_teacher.h"

namespace distill::trainer {
namespace {

// The labels alone.
class NoTeacher : public Teacher {
 public:
  void predict(
      const data::Batch& /*batch*/, const sharding::TokenBatch& /*tokens*/, sharding::ModelShards& /*next*/,
      losses::LinearHeadInputs& /*head*/) override {}
  losses::MetricQualities quality(const losses::LossOptions& loss) const override {
    return losses::available_metrics(losses::TeacherKind::kNone, loss);
  }
};

} // namespace

std::unique_ptr<Teacher> make_teacher(
    const config::Config& config, const LoadedTeacher& teacher, models::BlockFunctions block) {
  if (!teacher.spec.exists()) {
    return std::make_unique<NoTeacher>();
  }
  if (!teacher.spec.rows()) {
    return std::make_unique<RunningTeacher>(config, *teacher.weights, std::move(block));
  }
  return teacher.weights != nullptr
      ? std::unique_ptr<Teacher>(std::make_unique<CachedHiddenTeacher>(*teacher.weights, *teacher.spec.rows()))
      : std::make_unique<CachedTokenTeacher>(*teacher.spec.rows());
}

} // namespace distill::trainer
