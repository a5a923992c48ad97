#include "trainer/config/load.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/config/paths.h"
#include "trainer/config/reader.h"
#include "trainer/config/rules.h"
#include "trainer/config/teachers.h"

namespace distill::config {

namespace {

void take_the_labels_alone(losses::LossOptions& loss) {
  loss.divergence = losses::Divergence::kNone;
  loss.hard_weight = loss.hard_weight > 0 ? loss.hard_weight : 1;
}

// Makes the configuration that of one of several teachers, where one is named or needed.
absl::Status choose_teacher(Purpose purpose, const std::string& name, ReadResult& read) {
  const bool needed = (purpose == Purpose::kCapture || purpose == Purpose::kQuantize) && !read.config.teachers.empty();
  if (name.empty() && !needed) {
    return absl::OkStatus();
  }
  const std::vector<std::string> names = read.config.teacher_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--teacher: expected the name of one of the teachers of the configuration, ",
        names.empty() ? "which has none with names" : absl::StrJoin(names, " or "), ", found ",
        name.empty() ? "none" : name));
  }
  const auto number = static_cast<size_t>(found - names.begin());
  std::erase_if(read.config.teachers[number].keys, [&](const TeacherKey& key) {
    const auto origin = read.origins.find(key.key);
    return origin != read.origins.end() && origin->second.line == 0; // the command line says otherwise
  });
  const Config own = config_of_teacher(read.config, number);
  for (const Section& section : sections()) { // what has an effect with other teachers is no mistake
    for (const Field& field : section.fields) {
      if (!field.applies(own) && applies_to_run(field, read.config)) {
        read.origins.erase(field.key());
      }
    }
  }
  for (const auto& [key, origin] :
       origins_of_teacher(read.config.teachers[number], read.origins.find("teachers")->second.file)) {
    read.origins[key] = origin;
  }
  read.config = own;
  return absl::OkStatus();
}

} // namespace

absl::StatusOr<Config> load(
    const std::string& path, absl::Span<const std::string> overrides, Purpose purpose, int64_t ranks,
    const std::string& teacher) {
  return check(read_file(path, overrides), path, purpose, ranks, teacher);
}

absl::StatusOr<Config> check(
    ReadResult read, const std::string& source, Purpose purpose, int64_t ranks, const std::string& teacher) {
  RETURN_IF_ERROR(read.problems.empty() ? choose_teacher(purpose, teacher, read) : absl::OkStatus());
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
