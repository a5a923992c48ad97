#include "trainer/dropped_mass_check.h"

#include <absl/strings/str_format.h>

#include <algorithm>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"

namespace distill::trainer {

absl::Status judge_dropped_mass(const config::Config& config, std::optional<double> mass) {
  const double most = config.teacher.max_dropped_mass;
  if (!mass || !(*mass > most)) {
    return absl::OkStatus();
  }
  return config::of_teacher(
      config,
      absl::FailedPreconditionError(absl::StrFormat(
          "teacher.max_dropped_mass: expected at most %g, found %.4g: the teacher's mean probability of tokens of its "
          "own that the student lacks, of which the loss knows nothing; take a teacher whose added tokens are the "
          "student's, give the student those tokens, or raise the limit",
          most, *mass)));
}

absl::Status check_dropped_mass(
    const config::Config& config, MicroBatchRunner& micro,
    const std::vector<std::shared_ptr<const data::Dataset>>& data, const sharding::Mesh& mesh) {
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  std::vector<bool> judged(configs.size(), true);
  for (int64_t i = 0; i < micro.teachers(); ++i) {
    judged[static_cast<size_t>(i)] = micro.dropped_mass(i).empty(); // there is nothing to judge
  }
  base::ProblemList problems;
  for (const auto& set : data) {
    if (set == nullptr || std::find(judged.begin(), judged.end(), false) == judged.end()) {
      continue;
    }
    // Each teacher of whom there are documents has one micro-batch of each rank.
    ASSIGN_OR_RETURN(
        const EvaluationResult result,
        evaluate_dataset(
            micro, set, config.train.micro_batch_size, /*max_batches=*/mesh.data_size(), mesh,
            {.asked_to_stop = [] { return false; }}));
    const std::vector<double> shares = set->teacher_shares();
    for (size_t i = 0; i < judged.size(); ++i) {
      if (!judged[i] && shares[i] > 0) {
        const metrics::LossMeans& means = result.teachers.empty() ? result.means : result.teachers[i].means;
        problems.add(judge_dropped_mass(configs[i], means.teacher_dropped_mass));
        judged[i] = true;
      }
    }
  }
  return problems.status();
}

} // namespace distill::trainer
