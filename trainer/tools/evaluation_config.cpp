#include "trainer/tools/evaluation_config.h"

#include "data/base/status_macros.h"
#include "trainer/config/reader.h"
#include "trainer/config/teachers.h"
#include "trainer/hf/config_json.h"

namespace distill::trainer {
namespace {

// The model is given by a command-line option. What the file says of another model's tokenizer or keys stays.
void set_path(std::string& path, const std::string& key, const std::string& option, config::ReadResult& read) {
  if (!option.empty()) {
    path = option;
    read.origins[key] = {"--" + key.substr(0, key.find('.')), 0};
  }
}

// The largest length up to `wanted` that the models can read. A model that cannot be read is reported when it is
// opened.
int64_t readable_length(const config::Config& config, int64_t wanted) {
  for (const auto& [name, section] : config::models_of_run(config)) {
    if (section.path.empty()) {
      continue;
    }
    if (const auto model = hf::read_model_config(section.path, {section.ignore_config_keys}); model.ok()) {
      wanted = std::min(wanted, model->max_position_embeddings);
    }
  }
  return wanted;
}

} // namespace

absl::StatusOr<config::Config> evaluation_config(const EvaluationRequest& request) {
  config::ReadResult read = request.config.empty() ? config::read_overrides(request.overrides)
                                                   : config::read_file(request.config, request.overrides);
  // Of several teachers, --teacher names one; else it is a folder, which takes their place.
  const std::vector<std::string> names = read.config.teacher_names();
  const bool is_name = std::find(names.begin(), names.end(), request.teacher) != names.end();
  // A teacher that is measured alone stands for the student, too.
  const bool alone = request.purpose == config::Purpose::kQuantize && request.student.empty() && !is_name;
  set_path(read.config.student.path, "student.path", alone ? request.teacher : request.student, read);
  if (!is_name) {
    set_path(read.config.teacher.path, "teacher.path", request.teacher, read);
    if (!request.teacher.empty()) {
      read.config.teachers.clear();
      read.origins.erase("teachers");
    }
  }
  if (!request.data.empty()) {
    read.config.data.eval.clear();
    for (const std::string& path : request.data) {
      read.config.data.eval.push_back({path, 1.0});
    }
    read.origins["data.eval"] = {"--data", 0};
  }
  const bool has_length = read.origins.find("data.seq_len") != read.origins.end();
  const std::string source = request.config.empty() ? "distill eval" : request.config;
  ASSIGN_OR_RETURN(
      config::Config config,
      config::check(std::move(read), source, request.purpose, /*ranks=*/0, is_name ? request.teacher : ""));
  if (!has_length) {
    config.data.seq_len = readable_length(config, config.data.seq_len);
  }
  return config;
}

} // namespace distill::trainer
