#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <cstdio>
#include <filesystem>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/verify.h"
#include "trainer/hf/model_checksums.h"

namespace distill::cli {

namespace {

namespace fs = std::filesystem;

bool holds(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

absl::Status verify_one_checkpoint(const std::string& folder) {
  const auto verified = checkpoint::verify_checkpoint(folder);
  if (verified.ok()) {
    std::printf(
        "%s: checkpoint of step %ld, %ld files, %ld bytes: every checksum fits\n", folder.c_str(),
        static_cast<long>(verified->step), static_cast<long>(verified->files), static_cast<long>(verified->bytes));
  }
  return verified.status();
}

absl::Status verify_model(const std::string& folder) {
  const auto verified = hf::verify_model_folder(folder);
  if (verified.ok()) {
    std::printf(
        "%s: model folder, %ld files, %ld bytes: every checksum fits\n", folder.c_str(),
        static_cast<long>(verified->files), static_cast<long>(verified->bytes));
  }
  return verified.status();
}

// Every complete checkpoint and the trained model; all problems come back together.
absl::Status verify_run(const std::string& folder) {
  std::string problems;
  int64_t found = 0;
  const auto add = [&](const absl::Status& status) {
    ++found;
    if (!status.ok()) {
      absl::StrAppend(&problems, problems.empty() ? "" : "\n", std::string(status.message()));
    }
  };
  for (const auto& [step, path] : checkpoint::complete_checkpoints(folder)) {
    add(verify_one_checkpoint(path.string()));
  }
  if (holds(fs::path(folder) / "model", "config.json")) {
    add(verify_model((fs::path(folder) / "model").string()));
  }
  if (found == 0) {
    return absl::NotFoundError(folder + ": a run folder without a complete checkpoint or a model");
  }
  return problems.empty() ? absl::OkStatus() : absl::DataLossError(problems);
}

absl::Status verify(const std::string& path) {
  if (holds(path, checkpoint::kMarkerFile) || holds(path, checkpoint::kIndexFile)) {
    return verify_one_checkpoint(path);
  }
  if (holds(path, "config.json") || holds(path, hf::kChecksumsFile)) {
    return verify_model(path);
  }
  if (holds(path, "config.yaml") || holds(path, "checkpoints")) {
    return verify_run(path);
  }
  return absl::NotFoundError(absl::StrCat(
      path, ": expected a checkpoint (", checkpoint::kMarkerFile,
      "), a model folder (config.json) or a run folder "
      "(config.yaml), found none of these"));
}

} // namespace

int run_verify(const VerifyCommand& command) {
  const absl::Status status = verify(command.path);
  return status.ok() ? kSuccess : fail(status);
}

} // namespace distill::cli
