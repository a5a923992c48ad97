#include "trainer/run_folder/trained_model.h"

#include <filesystem>

#include "trainer/config/dtypes.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/save_model.h"
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

absl::Status write_student(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh,
    const std::string& folder, at::ScalarType dtype, const char* task, bool in_place) {
  hf::SaveOptions options;
  options.config_folder = config.student.path;
  options.tokenizer = config.student.tokenizer;
  options.dtype = dtype;
  options.replace = true;
  options.in_place = in_place;
  int64_t gathered = 0;
  metrics::TaskProgress progress(
      task, student.num_units(), "units", mesh.is_main() ? config.run.progress : config::ProgressStyle::kNone);
  const auto flat = [&](size_t unit) -> absl::StatusOr<at::Tensor> {
    progress.update(gathered++);
    return student.gather_master(static_cast<int64_t>(unit), mesh.gather.get());
  };
  absl::Status status;
  if (mesh.is_main()) {
    status = hf::save_model(folder, student.config(), flat, options);
  }
  while (gathered < student.num_units()) { // of ranks that do not write, or that remain after a failed write
    flat(static_cast<size_t>(gathered)).IgnoreError();
  }
  return sharding::agree(mesh, status);
}

absl::Status save_trained_model(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh) {
  const at::ScalarType dtype = config::scalar_type(config.checkpoint.model_dtype, student.config());
  return write_student(config, student, mesh, trained_model_folder(config), dtype, "writing the model");
}

} // namespace distill::trainer
