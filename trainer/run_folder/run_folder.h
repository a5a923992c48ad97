#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/run_folder/folder_lock.h"

namespace distill::trainer {

enum class StartMode {
  kFresh, // the run folder must not exist, or be empty
  kResume, // continues the run folder
  kOverwrite, // removes the files of an earlier run from the run folder
};

// The run folder: config.yaml (resolved), log.txt, metrics.jsonl, samples.jsonl, checkpoints/, model/. It belongs to
// one job: rank 0 claims it before anything in it changes, and the claim lasts as long as this object, or as the
// process.
class RunFolder {
 public:
  // Checks whether a run may start in `dir` in this mode, claims the folder, and creates it where there is none;
  // changes nothing in it. `parent_run`, for a replay: the run folder in which `dir` lies, which is claimed as well;
  // empty: none. FailedPrecondition: another process uses the folder; a new run in a folder that is not empty;
  // overwriting a folder with files that no run writes. NotFound: a resumption without a folder. InvalidArgument: `dir`
  // is a file.
  static absl::StatusOr<std::shared_ptr<RunFolder>> claim(
      const std::string& dir, StartMode mode, const std::string& parent_run = "", const LockOptions& options = {});

  // The same checks for a process that starts the ranks, or tries whether they could start; claims and changes nothing.
  static absl::Status check(const std::string& dir, StartMode mode, const std::string& parent_run = "");

  // Releases the folder, and removes it if the claim has created it and nothing was written to it.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // With kOverwrite, removes the files of the earlier run, and no others.
  absl::Status remove_earlier_run() const;

  // Log lines about the locks: of dead processes that were taken over, or where the file system has none.
  const std::vector<std::string>& notes() const {
    return notes_;
  }

 private:
  RunFolder(std::string dir, StartMode mode) : dir_(std::move(dir)), mode_(mode) {}
  absl::Status create();
  absl::Status take(const std::string& folder, const LockOptions& options);

  std::string dir_;
  StartMode mode_;
  std::vector<std::string> created_; // folders, the outermost first
  std::vector<std::unique_ptr<FolderLock>> locks_;
  std::vector<std::string> notes_;
};

} // namespace distill::trainer
