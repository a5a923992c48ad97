#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <optional>
#include <string>

#include "trainer/run_folder/lock_file.h"
#include "trainer/run_folder/lock_holder.h"

// How the lock of a folder is taken. FolderLock holds it.
namespace distill::trainer {

inline constexpr const char* kLockFile = ".lock"; // in the run folder

struct LockOptions {
  bool advisory = true; // false, for tests: as on a file system that has no locks
  std::chrono::milliseconds heartbeat{5000}; // from one renewal of the file's time to the next
  std::chrono::milliseconds silence{20000}; // a holder on another host is dead after so long without a renewal
  std::chrono::seconds old{600}; // the same by the clocks of both hosts, for a holder that need not be watched
  std::chrono::milliseconds busy{1000}; // wait for a holder that is about to end
  std::chrono::milliseconds ending{60000}; // the same for one that has been killed and releases its memory
};

std::string lock_path(const std::string& folder);

// The holder for an error or a log line.
std::string holder_text(const std::optional<LockHolder>& holder, const std::string& path);

struct TakenLock {
  LockFile file; // locked, with the text in it
  std::string text; // names this process
  std::string taken_over; // a log line about the dead process that had the lock; empty: none had
};
// See FolderLock::take().
absl::StatusOr<TakenLock> take_lock(const std::string& folder, const LockOptions& options);

// Waits as take_lock() does for a holder that is about to end. FailedPrecondition: another process holds the lock.
absl::Status check_lock_free(const std::string& folder, const LockOptions& options);

} // namespace distill::trainer
