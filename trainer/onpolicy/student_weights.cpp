#include "trainer/onpolicy/student_weights.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <chrono>
#include <filesystem>

#include "data/base/checksum.h"
#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/onpolicy/round_folder.h"
#include "trainer/run_folder/trained_model.h"

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
  std::string folder;
  if (mesh.is_main()) {
    folder = weights_folder(config);
  }
  // What the student computes with: rounded further, it would be another student.
  const at::ScalarType dtype = student.options().compute_dtype == at::kFloat ? at::kFloat : at::kBFloat16;
  // The engine has read those of the round before, and memory never holds two of them.
  RETURN_IF_ERROR(
      trainer::write_student(config, student, mesh, folder, dtype, "writing the student's weights", /*in_place=*/true));
  absl::Status status;
  if (mesh.is_main()) {
    auto version = version_of(folder, step);
    status = version.status();
    weights = {folder, std::move(version).value_or("")};
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
}

} // namespace distill::onpolicy
