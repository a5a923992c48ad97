#include "trainer/run_folder/run_folder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFiles[] = {"config.yaml", "log.txt", "metrics.jsonl", "events.jsonl",
                                     "checkpoints", "model",   "nccl-trace"};

bool is_run_file(const std::string& name) {
  if (name.starts_with("trace-rank") || name.starts_with("stacks-rank") || name.starts_with("replay-")) {
    return true;
  }
  return std::any_of(std::begin(kRunFiles), std::end(kRunFiles), [&](std::string_view file) {
    return name == file || name == std::string(file) + ".partial";
  });
}

} // namespace

absl::Status check_run_folder(const std::string& run_dir, StartMode mode) {
  std::error_code error;
  const bool exists = fs::exists(run_dir, error);
  if (exists && !fs::is_directory(run_dir, error)) {
    return absl::InvalidArgumentError(absl::StrCat("run.dir: expected a folder, found a file: ", run_dir));
  }
  const bool empty = !exists || fs::is_empty(run_dir, error);
  if (mode == StartMode::kResume) {
    if (empty) {
      return absl::NotFoundError(absl::StrCat(
          "--resume: run.dir ", run_dir, exists ? " is empty" : " does not exist", "; start without --resume"));
    }
    return absl::OkStatus();
  }
  if (mode == StartMode::kFresh && !empty) {
    return absl::FailedPreconditionError(absl::StrCat(
        "run.dir: ", run_dir,
        " already exists and is not empty; continue it with --resume, replace it with --overwrite, "
        "or name another folder"));
  }
  if (mode == StartMode::kOverwrite && !empty) {
    for (const auto& entry : fs::directory_iterator(run_dir, error)) {
      if (!is_run_file(entry.path().filename().string())) {
        return absl::FailedPreconditionError(absl::StrCat(
            "--overwrite: ", run_dir, " holds ", entry.path().filename().string(),
            ", which no run of distill writes; remove it by hand or name another run.dir"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status open_run_folder(const std::string& run_dir, StartMode mode) {
  std::error_code error;
  if (mode == StartMode::kOverwrite && fs::exists(run_dir, error)) {
    std::vector<fs::path> old;
    for (const auto& entry : fs::directory_iterator(run_dir, error)) {
      if (is_run_file(entry.path().filename().string())) {
        old.push_back(entry.path());
      }
    }
    for (const fs::path& path : old) {
      fs::remove_all(path, error);
      if (error) {
        return absl::InternalError(absl::StrCat(path.string(), ": cannot remove: ", error.message()));
      }
    }
  }
  fs::create_directories(run_dir, error);
  if (error) {
    return absl::InternalError(absl::StrCat("run.dir: cannot create ", run_dir, ": ", error.message()));
  }
  return absl::OkStatus();
}

} // namespace distill::trainer
