#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>

#include "trainer/run_folder/take_lock.h"

namespace distill::trainer {

// A lock on a folder, from take() to the destructor or to the end of the process, however that comes.
//
// The lock is an open-file-description lock (fcntl(2), F_OFD_SETLK) on the file .lock, which local file systems, NFSv4
// and Lustre with `flock` share among hosts. It ends with the process, and children that are started with exec do not
// inherit it. The file says who holds it; the holder renews its modification time, and removes it at a regular end. So
// a file that is there and not locked was left by a process that died, and the lock is taken over.
//
// Some file systems have no such locks (Lustre without `flock`), or only among the processes of one host (NFS with
// `nolock` or `local_lock`, Lustre with `localflock`, BeeGFS by default). Therefore a file of another host counts only
// once its time has not been renewed for `silence`; and where there are no locks at all, the lock is the existence of
// the file, and a holder of this host is dead when its process is gone.
class FolderLock {
 public:
  // The folder exists. FailedPrecondition: another process holds the lock; the message names it. NotFound: the folder
  // has been removed. Internal: the file cannot be made. Blocks while it waits for what the options name.
  static absl::StatusOr<std::unique_ptr<FolderLock>> take(const std::string& folder, const LockOptions& options = {});

  // The same error where the lock is seen to be held; changes nothing.
  static absl::Status check_free(const std::string& folder, const LockOptions& options = {});

  // Who holds the lock now, as text; nullopt: nobody is seen to.
  static std::optional<std::string> holder(const std::string& folder);

  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // A log line about the dead process whose lock was taken over; empty: there was none.
  const std::string& taken_over() const {
    return taken_over_;
  }

 private:
  struct State; // what the thread that renews the file's time uses, too

  FolderLock(std::shared_ptr<State> state, std::string taken_over);

  std::shared_ptr<State> state_;
  std::string taken_over_;
};

} // namespace distill::trainer
