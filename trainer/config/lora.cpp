#include "trainer/config/lora.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <filesystem>

#include "data/base/checksum.h"
#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"
#include "trainer/hf/fingerprint.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/models/random_weights.h"

namespace distill::config {
namespace {

// Module names have none of these.
bool is_expression(const std::string& text) {
  return text.find_first_of("*+?()[]{}|\\^$") != std::string::npos;
}

// The text of student.lora.targets as peft has it: a list of names, one regular expression, or all-linear.
absl::Status add_targets(const std::vector<std::string>& texts, hf::PeftConfig& peft) {
  for (const std::string& text : texts) {
    if (text == "all-linear") {
      peft.all_linear = true;
    } else if (is_expression(text)) {
      peft.targets.expression = text;
    } else {
      peft.targets.names.push_back(text);
    }
  }
  const bool alone = texts.size() == 1 || peft.targets.names.size() == texts.size();
  return alone ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "student.lora.targets: expected names of modules, or all-linear alone, or one regular expression "
                     "alone, found several of these");
}

absl::StatusOr<models::AdapterSpec> resolve(
    const hf::PeftConfig& peft, const models::ModelConfig& model, const std::string& folder) {
  models::ModelConfig plain = model;
  plain.adapter.reset();
  return folder.empty()
      ? hf::resolve_adapter(peft, plain, "student.lora", /*each_name=*/true)
      : hf::resolve_adapter(peft, plain, absl::StrCat(folder, "/", hf::kPeftConfig), /*each_name=*/false);
}

} // namespace

bool Config::same_folder() const {
  std::error_code error;
  const auto folder = [&error](const std::string& path) { return std::filesystem::weakly_canonical(path, error); };
  return student.init == teacher.init && !teacher.reads_cache() && folder(student.path) == folder(teacher.path);
}

int64_t Config::teacher_seed() const {
  if (trains_adapter() && same_folder()) {
    return train.seed;
  }
  const auto path = [this](size_t number) { return config_of_teacher(*this, number).teacher.path; };
  int64_t first = std::max<int64_t>(0, this_teacher); // of the teachers with this folder
  for (int64_t other = this_teacher - 1; other >= 0; --other) {
    first = path(static_cast<size_t>(other)) == teacher.path ? other : first;
  }
  return train.seed + 1 + first;
}

absl::StatusOr<hf::PeftConfig> student_adapter(const Config& config) {
  const LoraSection& lora = config.lora;
  hf::PeftConfig peft;
  if (!config.student.adapter.empty()) {
    ASSIGN_OR_RETURN(peft, hf::read_peft_config(config.student.adapter));
  } else {
    peft.rank = lora.rank;
    peft.alpha = lora.alpha == kAutomatic ? static_cast<double>(lora.rank) : lora.alpha;
    peft.rslora = lora.rslora;
    peft.whole = lora.modules_to_save;
    peft.parameters = lora.target_parameters;
    RETURN_IF_ERROR(add_targets(lora.targets, peft));
  }
  peft.dropout = lora.dropout;
  std::error_code error;
  peft.base = std::filesystem::absolute(config.student.path, error).lexically_normal().string();
  return peft;
}

absl::StatusOr<models::AdapterSpec> resolve_student_adapter(const Config& config, const models::ModelConfig& student) {
  ASSIGN_OR_RETURN(const hf::PeftConfig peft, student_adapter(config));
  ASSIGN_OR_RETURN(models::AdapterSpec adapter, resolve(peft, student, config.student.adapter));
  adapter.seed = static_cast<uint64_t>(config.train.seed);
  return adapter;
}

absl::StatusOr<models::AdapterSpec> resolve_teacher_adapter(const Config& config, const models::ModelConfig& teacher) {
  ASSIGN_OR_RETURN(hf::PeftConfig peft, hf::read_peft_config(config.teacher.adapter));
  peft.dropout = 0; // which a model that is not trained does not have
  return resolve(peft, teacher, config.teacher.adapter);
}

absl::StatusOr<std::shared_ptr<const models::WeightSource>> open_weights(
    const ModelSection& section, const models::ModelConfig& model, int64_t seed, hf::Notes* notes) {
  if (section.init == ModelInit::kRandom && !section.reads_cache()) {
    return models::random_weights(model, static_cast<uint64_t>(seed));
  }
  return hf::open_weights(section.folder(), model, notes);
}

absl::StatusOr<std::string> base_hash(const ModelSection& model, int64_t seed) {
  ASSIGN_OR_RETURN(std::string text, hf::folder_fingerprint(model.folder()));
  if (model.init == ModelInit::kRandom) {
    absl::StrAppend(&text, "random from seed ", seed, "\n");
  }
  return base::checksum_text(base::checksum(text.data(), text.size()));
}

absl::StatusOr<std::map<std::string, std::string>> hashes_beside_checkpoints(const Config& config) {
  std::map<std::string, std::string> hashes;
  for (const auto& [name, section] : models_of_run(config)) {
    const bool is_student = name == "student";
    if (is_student ? config.trains_adapter() : !section.folder().empty()) {
      const std::string key = absl::StrCat(name, section.reads_cache() ? ".cache" : ".path");
      ASSIGN_OR_RETURN(hashes[key], base_hash(section, config.train.seed));
    }
    if (!is_student && !section.adapter.empty()) {
      ModelSection adapter;
      adapter.path = section.adapter;
      ASSIGN_OR_RETURN(hashes[absl::StrCat(name, ".adapter")], base_hash(adapter, config.train.seed));
    }
  }
  return hashes;
}

} // namespace distill::config
