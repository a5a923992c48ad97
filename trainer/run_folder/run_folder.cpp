#include "trainer/run_folder/run_folder.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "data/base/durable_file.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRunFiles[] = {"config.yaml",      "log.txt",          "metrics.jsonl", "events.jsonl",
                                     "samples.jsonl",    "sessions.jsonl",   "checkpoints",   "model",
                                     "onpolicy",         "nccl-trace",       "tensorboard",   "report.html",
                                     "track-wandb.json", "track-mlflow.json"};
constexpr const char* kReplayPrefix = "replay-";

bool is_run_file(const std::string& name) {
  if (name.starts_with("trace-rank") || name.starts_with("stacks-rank") || name.starts_with(kReplayPrefix)) {
    return true;
  }
  return std::any_of(std::begin(kRunFiles), std::end(kRunFiles), [&](const std::string& file) {
    return name == file || name == file + ".partial" || name == file + base::kUnfinishedFolder ||
        name == file + base::kReplacedFolder;
  });
}

// Names in the folder, without the lock file.
std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (std::string name = it->path().filename().string(); name != kLockFile) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

absl::Status check_overwritten(const std::string& dir, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!is_run_file(name)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "--overwrite: ", dir, " holds ", name,
          ", which no run of distill writes; remove it by hand or name another run.dir"));
    }
    if (name.starts_with(kReplayPrefix)) { // a run folder of its own
      RETURN_IF_ERROR(FolderLock::check_free((fs::path(dir) / name).string()));
    }
  }
  return absl::OkStatus();
}

// An error if a run may not start in the folder because of the files in it.
absl::Status check_content(const std::string& dir, StartMode mode) {
  std::error_code error;
  const bool exists = fs::exists(dir, error);
  const std::vector<std::string> names = names_in(dir);
  switch (mode) {
    case StartMode::kFresh:
      return names.empty() ? absl::OkStatus()
                           : absl::FailedPreconditionError(absl::StrCat(
                                 "run.dir: ", dir,
                                 " already exists and is not empty; continue it with --resume, replace it with "
                                 "--overwrite, or name another folder"));
    case StartMode::kResume:
      return !names.empty()
          ? absl::OkStatus()
          : absl::NotFoundError(absl::StrCat(
                "--resume: run.dir ", dir, exists ? " is empty" : " does not exist", "; start without --resume"));
    case StartMode::kOverwrite:
      return check_overwritten(dir, names);
  }
  return absl::OkStatus();
}

} // namespace

absl::Status RunFolder::check(const std::string& dir, StartMode mode, const std::string& parent_run) {
  if (!parent_run.empty()) {
    RETURN_IF_ERROR(FolderLock::check_free(parent_run));
  }
  RETURN_IF_ERROR(base::check_output_folder("run.dir", dir));
  RETURN_IF_ERROR(FolderLock::check_free(dir)); // before the content, which another job may be changing
  return check_content(dir, mode);
}

absl::StatusOr<std::shared_ptr<RunFolder>> RunFolder::claim(
    const std::string& dir, StartMode mode, const std::string& parent_run, const LockOptions& options) {
  std::shared_ptr<RunFolder> folder(new RunFolder(dir, mode));
  if (!parent_run.empty()) {
    RETURN_IF_ERROR(folder->take(parent_run, options));
  }
  // Before the folder is created or gets a lock file: one that is refused is left as it is.
  RETURN_IF_ERROR(base::check_output_folder("run.dir", dir));
  RETURN_IF_ERROR(FolderLock::check_free(dir, options));
  RETURN_IF_ERROR(check_content(dir, mode));
  absl::Status taken;
  constexpr int kAttempts = 10; // another process may remove the folder that its failed claim has created
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    RETURN_IF_ERROR(folder->create());
    taken = folder->take(dir, options);
    if (!absl::IsNotFound(taken)) {
      break;
    }
  }
  RETURN_IF_ERROR(taken);
  RETURN_IF_ERROR(check_content(dir, mode)); // now that nobody changes it any more
  return folder;
}

absl::Status RunFolder::take(const std::string& folder, const LockOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<FolderLock> lock, FolderLock::take(folder, options));
  if (!lock->note().empty()) {
    notes_.push_back(lock->note());
  }
  locks_.push_back(std::move(lock));
  return absl::OkStatus();
}

absl::Status RunFolder::create() {
  std::error_code error;
  std::vector<std::string> missing;
  for (fs::path path = fs::absolute(dir_, error).lexically_normal(); !error && !fs::exists(path, error);
       path = path.parent_path()) {
    missing.push_back(path.string());
  }
  fs::create_directories(dir_, error);
  if (error) {
    return absl::FailedPreconditionError(absl::StrCat("run.dir: cannot create ", dir_, ": ", error.message()));
  }
  created_.insert(created_.end(), missing.rbegin(), missing.rend());
  return absl::OkStatus();
}

RunFolder::~RunFolder() {
  locks_.clear();
  for (auto path = created_.rbegin(); path != created_.rend(); ++path) {
    ::rmdir(path->c_str()); // refuses a folder that holds anything
  }
}

absl::Status RunFolder::remove_earlier_run() const {
  if (mode_ != StartMode::kOverwrite) {
    return absl::OkStatus();
  }
  for (const std::string& name : names_in(dir_)) {
    if (!is_run_file(name)) {
      continue;
    }
    std::error_code error;
    fs::remove_all(fs::path(dir_) / name, error);
    if (error) {
      return absl::InternalError(absl::StrCat((fs::path(dir_) / name).string(), ": cannot remove: ", error.message()));
    }
  }
  return absl::OkStatus();
}

} // namespace distill::trainer
