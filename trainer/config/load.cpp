#include "trainer/config/load.h"

#include "trainer/config/paths.h"
#include "trainer/config/reader.h"
#include "trainer/config/rules.h"

namespace distill::config {

absl::StatusOr<Config> load(
    const std::string& path, absl::Span<const std::string> overrides, Purpose purpose, int64_t ranks) {
  ReadResult read = read_file(path, overrides);
  std::vector<Problem> problems = std::move(read.problems);
  const CheckContext context{path, purpose, read.origins, suspect_keys(problems), ranks};
  for (auto* check : {&check_rules, &check_paths}) {
    for (Problem& problem : (*check)(read.config, context)) {
      problems.push_back(std::move(problem));
    }
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(report(problems));
  }
  return std::move(read.config);
}

} // namespace distill::config
