#include "trainer/dropped_mass_check.h"

#include <absl/strings/str_format.h>

#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"

namespace distill::trainer {

absl::Status judge_dropped_mass(const config::Config& config, std::optional<double> mass) {
  const double most = config.teacher.max_dropped_mass;
  if (!mass || !(*mass > most)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "teacher.max_dropped_mass: expected at most %g, found %.4g: the teacher's mean probability of tokens of its own that "
      "the student lacks, of which the loss knows nothing; take a teacher whose added tokens are the student's, give the "
      "student those tokens, or raise the limit",
      most, *mass));
}

absl::Status check_dropped_mass(
    const config::Config& config, MicroBatchRunner& micro, const std::shared_ptr<const data::Dataset>& data,
    const sharding::Mesh& mesh) {
  bool any = false;
  for (int64_t i = 0; i < micro.teachers(); ++i) {
    any = any || !micro.dropped_mass(i).empty();
  }
  if (!any) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      const EvaluationResult result,
      evaluate_dataset(
          micro, data, config.train.micro_batch_size, /*max_batches=*/mesh.data_size(), mesh,
          {.asked_to_stop = [] { return false; }}));
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  if (result.teachers.empty()) {
    return judge_dropped_mass(configs.front(), result.means.teacher_dropped_mass);
  }
  for (size_t i = 0; i < result.teachers.size(); ++i) {
    RETURN_IF_ERROR(judge_dropped_mass(configs[i], result.teachers[i].means.teacher_dropped_mass));
  }
  return absl::OkStatus();
}

} // namespace distill::trainer
