#include "trainer/onpolicy/student_weights.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <chrono>
#include <filesystem>

#include "data/base/checksum.h"
#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/save_model.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/onpolicy/round_folder.h"

namespace distill::onpolicy {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxChecksumBytes = 16 << 20;

absl::StatusOr<std::string> version_of(const std::string& folder, int64_t step) {
  const std::string file = absl::StrCat(folder, "/", hf::kChecksumsFile);
  ASSIGN_OR_RETURN(const std::string text, base::read_text_file(file, kMaxChecksumBytes));
  return absl::StrFormat("step-%d-%s", step, base::checksum_text(base::checksum(text.data(), text.size())));
}

} // namespace

std::string weights_folder(const config::Config& config) {
  std::error_code error;
  const std::string run_dir = fs::absolute(config.run.dir, error).lexically_normal().string();
  if (config.onpolicy.weights_dir.empty()) {
    return absl::StrCat(run_dir, "/", kRoundsFolder, "/weights");
  }
  return absl::StrCat(
      fs::absolute(config.onpolicy.weights_dir, error).lexically_normal().string(), "/distill-",
      base::checksum_text(base::checksum(run_dir.data(), run_dir.size())));
}

absl::StatusOr<StudentWeights> write_student_weights(
    const config::Config& config, const sharding::ModelShards& student, const sharding::Mesh& mesh, int64_t step) {
  const auto began = std::chrono::steady_clock::now();
  StudentWeights weights;
  int64_t gathered = 0;
  metrics::TaskProgress progress(
      "writing the student's weights", student.num_units(), "units",
      mesh.is_main() ? config.run.progress : config::ProgressStyle::kNone);
  const auto flat = [&](size_t unit) -> absl::StatusOr<at::Tensor> {
    progress.update(gathered++);
    return student.gather_master(static_cast<int64_t>(unit), mesh.gather.get());
  };
  absl::Status status;
  if (mesh.is_main()) {
    weights.folder = weights_folder(config);
    remove_student_weights(config); // so that memory never holds two of them
    hf::SaveOptions options;
    options.config_folder = config.student.path;
    options.tokenizer = config.student.tokenizer;
    // What the student computes with: rounded further, it would be another student.
    options.dtype = student.options().compute_dtype == at::kFloat ? at::kFloat : at::kBFloat16;
    options.replace = true;
    status = hf::save_model(weights.folder, student.config(), flat, options);
  }
  while (gathered < student.num_units()) { // of ranks that do not write, or that remain after a failed write
    flat(static_cast<size_t>(gathered)).IgnoreError();
  }
  if (mesh.is_main() && status.ok()) {
    auto version = version_of(weights.folder, step);
    status = version.status();
    weights.version = std::move(version).value_or("");
  }
  RETURN_IF_ERROR(sharding::agree(mesh, status));
  weights.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return weights;
}

bool is_written(const config::Config& config, const std::string& version) {
  const auto own = version_of(weights_folder(config), /*step=*/0);
  const auto hash = [](const std::string& text) { return text.substr(text.rfind('-') + 1); };
  return own.ok() && !version.empty() && hash(*own) == hash(version);
}

void remove_student_weights(const config::Config& config) {
  std::error_code ignored;
  fs::remove_all(weights_folder(config), ignored);
  fs::remove_all(weights_folder(config) + ".tmp", ignored);
}

} // namespace distill::onpolicy
