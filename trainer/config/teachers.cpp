#include "trainer/config/teachers.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/strip.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>

#include "data/base/enum_names.h"
#include "trainer/config/value.h"

namespace distill::config {
namespace {

// The keys outside the section `teacher` that may differ from teacher to teacher: what is asked of it, how it is
// stored, checked and sharded.
constexpr const char* kOwnKeys[] = {
    "loss.divergence",
    "loss.beta",
    "loss.skew_alpha",
    "loss.temperature",
    "loss.scale_by_temperature_squared",
    "loss.hard_weight",
    "loss.soft_weight",
    "loss.label_smoothing",
    "loss.z_loss",
    "loss.teacher_softcap",
    "loss.span_weight",
    "loss.span_starts",
    "loss.span_temperature",
    "cache.kind",
    "cache.dtype",
    "cache.topk",
    "cache.samples",
    "cache.exponent",
    "cache.seed",
    "cache.part_tokens",
    "cache.other_contexts",
    "float8.gate",
    "float8.gate_tokens",
    "float8.max_mean_kl",
    "float8.max_p99_kl",
    "parallel.shard_teacher",
};

} // namespace

std::string key_of_teacher(const std::string& key) {
  if (key == "cache.path") {
    return "teacher.cache";
  }
  if (key.find('.') == std::string::npos) {
    const std::string own = absl::StrCat("teacher.", key);
    return find_field(own) != nullptr ? own : "";
  }
  return std::find(std::begin(kOwnKeys), std::end(kOwnKeys), key) != std::end(kOwnKeys) ? key : "";
}

std::string keys_of_teachers() {
  std::vector<std::string> names = {"name"};
  for (const Field& field : find_section("teacher")->fields) {
    names.push_back(field.name);
  }
  std::string inner;
  for (const char* key : kOwnKeys) {
    const std::string section = std::string(key).substr(0, std::string(key).find('.'));
    if (section != inner) {
      inner = section;
      names.push_back(absl::StrCat(inner, ": {...}"));
    }
  }
  return absl::StrJoin(names, ", ");
}

Config config_of_teacher(const Config& config, size_t number) {
  Config own = config;
  own.this_teacher = static_cast<int64_t>(number);
  std::vector<Problem> problems; // none: the values were read when the configuration was
  for (const TeacherKey& key : config.teachers[number].keys) {
    assign(*find_field(key.key), YAML::Load(key.value), {}, own, problems);
  }
  TORCH_CHECK(problems.empty(), "teachers: a value that does not read back");
  return own;
}

std::vector<Config> configs_of_teachers(const Config& config) {
  if (!config.has_list()) {
    return {config};
  }
  std::vector<Config> all;
  all.reserve(config.teachers.size());
  for (size_t i = 0; i < config.teachers.size(); ++i) {
    all.push_back(config_of_teacher(config, i));
  }
  return all;
}

bool Config::any_teacher_by_bytes() const {
  const auto by_bytes = [](const TeacherKey& key) {
    return key.key == "teacher.alignment" && key.value == base::enum_name(Alignment::kBytes);
  };
  return teacher.alignment == Alignment::kBytes ||
      std::any_of(teachers.begin(), teachers.end(), [&](const NamedTeacher& named) {
           return std::any_of(named.keys.begin(), named.keys.end(), by_bytes);
         });
}

std::string text_of_teacher(const Config& config) {
  const auto number = static_cast<size_t>(std::max<int64_t>(0, config.this_teacher));
  return config.this_teacher < 0 ? "teacher" : absl::StrCat("teacher ", config.teachers[number].name);
}

absl::Status of_teacher(const Config& config, const absl::Status& status) {
  return status.ok() || config.this_teacher < 0
      ? status
      : absl::Status(
            status.code(),
            absl::StrCat(
                "teachers: ", config.teachers[static_cast<size_t>(config.this_teacher)].name, ": ",
                std::string(status.message())));
}

std::vector<ModelOfRun> models_of_run(const Config& config) {
  std::vector<ModelOfRun> models = {{"student", config.student}};
  for (const Config& own : configs_of_teachers(config)) {
    const auto number = static_cast<size_t>(std::max<int64_t>(0, own.this_teacher));
    models.push_back(
        {config.has_list() ? absl::StrCat("teachers[", number, "] (", config.teachers[number].name, ") teacher")
                           : "teacher",
         own.teacher});
  }
  return models;
}

std::vector<double> shares_of_teachers(const Config& config) {
  const std::vector<std::string> names = config.has_list() ? config.teacher_names() : std::vector<std::string>();
  if (names.empty()) {
    return {1.0};
  }
  std::vector<double> shares(names.size(), 0.0);
  double all = 0;
  for (const DataSet& set : config.train_sets()) {
    double sum = 0;
    for (const auto& [name, share] : set.teachers) {
      sum += share;
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const auto found = std::find_if(
          set.teachers.begin(), set.teachers.end(), [&](const auto& share) { return share.first == names[i]; });
      const double own = set.teachers.empty() ? 1.0 / static_cast<double>(names.size())
          : found != set.teachers.end()       ? found->second / sum
                                              : 0.0;
      shares[i] += set.weight * own;
    }
    all += set.weight;
  }
  for (double& share : shares) {
    share = all > 0 ? share / all : 1.0 / static_cast<double>(names.size());
  }
  return shares;
}

bool applies_to_run(const Field& field, const Config& config) {
  if (!config.has_list() || field.applies(config)) {
    return field.applies(config);
  }
  const std::vector<Config> all = configs_of_teachers(config);
  return std::any_of(all.begin(), all.end(), [&](const Config& own) { return field.applies(own); });
}

Origins origins_of_teacher(const NamedTeacher& teacher, const std::string& file) {
  Origins origins;
  for (const TeacherKey& key : teacher.keys) {
    origins[key.key] = {file, key.line};
  }
  return origins;
}

} // namespace distill::config
