#include "trainer/checkpoint/export.h"

#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/state_reader.h"
#include "trainer/config/dtypes.h"
#include "trainer/config/reader.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/save_model.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;

// The student's section of the run's configuration.
config::ModelSection student_section(const Index& index) {
  return config::read(index.info.config, "config", {}).config.student;
}

// The folder from which the run read the student's tokenizer; empty: the model's own folder, or one that is gone.
std::string tokenizer_source(const Index& index) {
  const std::string path = student_section(index).tokenizer;
  std::error_code error;
  return fs::exists(path, error) ? path : "";
}

} // namespace

absl::Status export_model(const ExportOptions& options) {
  ASSIGN_OR_RETURN(const Index index, read_index(options.checkpoint));
  const std::string source = options.model.empty() ? index.info.student_folder : options.model;
  const config::ModelSection student = student_section(index);
  const auto config = hf::read_model_config(
      source, {student.ignore_config_keys, /*with_weights=*/student.init == config::ModelInit::kPretrained});
  if (!config.ok()) {
    return absl::Status(
        config.status().code(),
        absl::StrCat(
            std::string(config.status().message()),
            "; config.json and tokenizer come from the run's student.path, or from the folder that --model names"));
  }
  const std::vector<models::UnitLayout> layouts = models::unit_layouts(*config);
  if (describe_units(layouts) != index.units) {
    return absl::FailedPreconditionError(absl::StrCat(
        options.checkpoint, ": its units are not those of ", source, "/config.json\n  checkpoint: ",
        index.info.identity.model, "\n  name the folder from which the student was initialised with --model"));
  }
  hf::SaveOptions save;
  save.config_folder = source;
  save.tokenizer = options.model.empty() ? tokenizer_source(index) : "";
  save.dtype = config::scalar_type(options.dtype, *config);
  StateReader reader(options.checkpoint, index);
  at::Tensor flat;
  return hf::save_model(
      options.out, *config,
      [&](size_t unit) -> absl::StatusOr<at::Tensor> {
        flat = at::Tensor(); // frees the previous unit's memory first
        flat = at::empty({layouts[unit].numel}, at::kFloat);
        absl::Status status = reader.read(static_cast<int64_t>(unit), "master", 0, flat);
        return status.ok() ? absl::StatusOr<at::Tensor>(flat) : status;
      },
      save);
}

} // namespace distill::checkpoint
