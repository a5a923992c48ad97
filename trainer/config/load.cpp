#include "trainer/config/load.h"

#include "trainer/config/paths.h"
#include "trainer/config/reader.h"
#include "trainer/config/rules.h"

namespace distill::config {

namespace {

void take_the_labels_alone(losses::LossOptions& loss) {
  loss.divergence = losses::Divergence::kNone;
  loss.hard_weight = loss.hard_weight > 0 ? loss.hard_weight : 1;
}

} // namespace

absl::StatusOr<Config> load(
    const std::string& path, absl::Span<const std::string> overrides, Purpose purpose, int64_t ranks) {
  return check(read_file(path, overrides), path, purpose, ranks);
}

absl::StatusOr<Config> check(ReadResult read, const std::string& source, Purpose purpose, int64_t ranks) {
  std::vector<Problem> problems = std::move(read.problems);
  const CheckContext context{source, purpose, read.origins, suspect_keys(problems), ranks, read.is_dump};
  for (auto* check : {&check_rules, &check_paths}) {
    for (Problem& problem : (*check)(read.config, context)) {
      problems.push_back(std::move(problem));
    }
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(report(problems));
  }
  if ((purpose == Purpose::kEvaluate || purpose == Purpose::kQuantize) && !read.config.has_teacher()) {
    take_the_labels_alone(read.config.loss);
  }
  return std::move(read.config);
}

} // namespace distill::config
