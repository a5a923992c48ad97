#include "trainer/run_folder/trained_model.h"

#include <filesystem>

#include "data/base/status_macros.h"
#include "trainer/config/dtypes.h"
#include "trainer/config/lora.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/peft_folder.h"
#include "trainer/metrics/task_progress.h"

namespace distill::trainer {

std::string trained_model_folder(const config::Config& config) {
  return config.run.dir + "/model";
}

absl::Status check_trained_model(const config::Config& config, const std::string& since) {
  namespace fs = std::filesystem;
  const std::string file = (fs::path(trained_model_folder(config)) / hf::kChecksumsFile).string();
  std::error_code no_model, no_marker;
  const auto written = fs::last_write_time(file, no_model);
  const auto saved = fs::last_write_time(since, no_marker);
  if (no_model) {
    return absl::NotFoundError(absl::StrCat(file, ": ", no_model.message()));
  }
  if (no_marker || written < saved) {
    return absl::FailedPreconditionError(absl::StrCat(file, ": expected a file that is newer than ", since));
  }
  return absl::OkStatus();
}

namespace {

// Calls `write` on rank 0 with a function that gathers units, one at a time, in which all ranks take part.
absl::Status write_gathered(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh, const char* task,
    const std::function<absl::Status(const hf::UnitFlat&)>& write) {
  int64_t gathered = 0;
  metrics::TaskProgress progress(
      task, student.num_units(), "units", mesh.is_main() ? config.run.progress : config::ProgressStyle::kNone);
  const auto flat = [&](size_t unit) -> absl::StatusOr<at::Tensor> {
    progress.update(gathered++);
    return student.gather_master(static_cast<int64_t>(unit), mesh.gather.get());
  };
  absl::Status status;
  if (mesh.is_main()) {
    status = write(flat);
  }
  while (gathered < student.num_units()) { // of ranks that do not write, or that remain after a failed write
    flat(static_cast<size_t>(gathered)).IgnoreError();
  }
  return sharding::agree(mesh, status);
}

} // namespace

absl::Status write_student(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh,
    const std::string& folder, at::ScalarType dtype, const char* task, bool in_place) {
  hf::SaveOptions options;
  options.config_folder = config.student.path;
  options.tokenizer = config.student.tokenizer;
  options.dtype = dtype;
  options.replace = true;
  options.in_place = in_place;
  return write_gathered(config, student, mesh, task, [&](const hf::UnitFlat& units) -> absl::Status {
    models::ModelConfig model = student.config();
    if (!model.adapter) {
      return hf::save_model(folder, model, units, options);
    }
    model.adapter.reset();
    ASSIGN_OR_RETURN(auto base, config::open_weights(config.student, model, config.train.seed));
    const hf::UnitFlat merged = hf::merged_units(student.config(), std::move(base), units);
    return hf::save_model(folder, model, merged, options);
  });
}

absl::Status save_trained_model(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh) {
  const std::string folder = trained_model_folder(config);
  constexpr const char* kTask = "writing the model";
  if (!student.config().adapter || config.lora.merge) {
    const at::ScalarType dtype = config::scalar_type(config.checkpoint.model_dtype, student.config());
    return write_student(config, student, mesh, folder, dtype, kTask);
  }
  return write_gathered(config, student, mesh, kTask, [&](const hf::UnitFlat& units) -> absl::Status {
    ASSIGN_OR_RETURN(const hf::PeftConfig peft, config::student_adapter(config));
    ASSIGN_OR_RETURN(const std::string base, config::base_hash(config.student, config.train.seed));
    const config::StoredDtype dtype = config.checkpoint.model_dtype;
    return hf::save_adapter(
        folder, peft, student.config(), units,
        {.dtype = dtype == config::StoredDtype::kAuto ? at::kFloat : config::scalar_type(dtype, student.config()),
         .base = base,
         .replace = true});
  });
}

} // namespace distill::trainer
