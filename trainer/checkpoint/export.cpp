#include "trainer/checkpoint/export.h"

#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/state_reader.h"
#include "trainer/config/dtypes.h"
#include "trainer/config/lora.h"
#include "trainer/config/reader.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/peft_folder.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;

// The folder from which the run read the student's tokenizer; empty: the model's own folder, or one that is gone.
std::string tokenizer_source(const config::Config& run) {
  const std::string path = run.student.tokenizer;
  std::error_code error;
  return fs::exists(path, error) ? path : "";
}

} // namespace

absl::Status export_model(const ExportOptions& options) {
  ASSIGN_OR_RETURN(const Index index, read_index(options.checkpoint));
  config::Config run = config::read(index.info.config, "config", {}).config;
  run.student.path = options.model.empty() ? index.info.student_folder : options.model;
  const std::string& source = run.student.path;
  const bool pretrained = run.student.init == config::ModelInit::kPretrained;
  auto model = hf::read_model_config(source, {run.student.ignore_config_keys, /*with_weights=*/pretrained});
  if (!model.ok()) {
    return absl::Status(
        model.status().code(),
        absl::StrCat(
            std::string(model.status().message()),
            "; config.json and tokenizer come from the run's student.path, or from the folder that --model names"));
  }
  if (run.trains_adapter()) {
    ASSIGN_OR_RETURN(model->adapter, config::resolve_student_adapter(run, *model));
    ASSIGN_OR_RETURN(const std::string hash, config::base_hash(run.student, run.train.seed));
    const auto saved = index.info.model_files.find(kBaseOfAdapters);
    if (saved != index.info.model_files.end() && saved->second != hash) {
      return absl::FailedPreconditionError(absl::StrCat(
          options.checkpoint, ": its adapters belong to other weights than those of ", source,
          ": the files of their base had the hash ", saved->second, ", these have ", hash,
          "; name the folder of the base with --model"));
    }
  }
  const std::vector<models::UnitLayout> layouts = models::trained_layouts(*model);
  if (describe_units(layouts) != index.units) {
    return absl::FailedPreconditionError(absl::StrCat(
        options.checkpoint, ": its units are not those of ", source, "/config.json\n  checkpoint: ",
        index.info.identity.model, "\n  name the folder from which the student was initialised with --model"));
  }
  StateReader reader(options.checkpoint, index);
  at::Tensor flat;
  const hf::UnitFlat units = [&](size_t unit) -> absl::StatusOr<at::Tensor> {
    flat = at::Tensor(); // frees the previous unit's memory first
    flat = at::empty({layouts[unit].numel}, at::kFloat);
    absl::Status status = reader.read(static_cast<int64_t>(unit), "master", 0, flat);
    return status.ok() ? absl::StatusOr<at::Tensor>(flat) : status;
  };
  hf::SaveOptions save;
  save.config_folder = source;
  save.tokenizer = options.model.empty() ? tokenizer_source(run) : "";
  save.dtype = config::scalar_type(options.dtype, *model);
  if (!model->adapter) {
    return hf::save_model(options.out, *model, units, save);
  }
  if (!options.merge && !run.lora.merge) {
    ASSIGN_OR_RETURN(const hf::PeftConfig peft, config::student_adapter(run));
    ASSIGN_OR_RETURN(const std::string base, config::base_hash(run.student, run.train.seed));
    const at::ScalarType dtype = options.dtype == config::StoredDtype::kAuto ? at::kFloat : save.dtype;
    return hf::save_adapter(options.out, peft, *model, units, {.dtype = dtype, .base = base});
  }
  models::ModelConfig whole = *model;
  whole.adapter.reset();
  ASSIGN_OR_RETURN(auto base, config::open_weights(run.student, whole, run.train.seed));
  return hf::save_model(options.out, whole, hf::merged_units(*model, std::move(base), units), save);
}

} // namespace distill::checkpoint
