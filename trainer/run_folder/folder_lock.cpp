#include "trainer/run_folder/folder_lock.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "data/base/status_macros.h"
#include "trainer/metrics/log.h"

namespace distill::trainer {

using Lock = LockFile::Lock;

struct FolderLock::State {
  State(std::string folder, LockFile lock_file, std::string own_text, const LockOptions& lock_options)
      : path(lock_path(folder)), file(std::move(lock_file)), text(std::move(own_text)), options(lock_options) {}

  void run();
  void beat();

  const std::string path;
  std::optional<LockFile> file; // the thread's until it has ended
  const std::string text;
  const LockOptions options;
  bool lost = false;
  std::mutex mutex;
  std::condition_variable changed;
  bool stop = false; // guarded by mutex
  bool ended = false; // guarded by mutex
};

void FolderLock::State::run() {
  ::pthread_setname_np(::pthread_self(), "run lock");
  std::unique_lock guard(mutex);
  while (!changed.wait_for(guard, options.heartbeat, [this] { return stop; })) {
    guard.unlock();
    beat();
    guard.lock();
  }
  ended = true;
  changed.notify_all();
}

// Renews the file's time; makes the file again where somebody has removed it.
void FolderLock::State::beat() {
  file->renew();
  if (file->is_at_path() || lost) {
    return;
  }
  auto made = LockFile::open(path, O_RDWR | O_CREAT | O_EXCL);
  if (made.ok() && (!options.advisory || made->lock() != Lock::kHeld) && made->write(text).ok()) {
    file = *std::move(made);
    metrics::log_warning(absl::StrCat(path, " was removed while this run uses the folder; it has been made again"));
    return;
  }
  if (made.ok() || absl::IsAlreadyExists(made.status())) {
    lost = true;
    const auto other = LockFile::open(path, O_RDONLY);
    metrics::log_error(absl::StrCat(
        path, " was removed while this run uses the folder, and the folder was then taken by ",
        holder_text(other.ok() ? LockHolder::parse(other->content()) : std::nullopt, path),
        ": two jobs write to it, stop one of them"));
  }
}

FolderLock::FolderLock(std::shared_ptr<State> state, std::string taken_over)
    : state_(std::move(state)), taken_over_(std::move(taken_over)) {
  std::thread([state = state_] { state->run(); }).detach(); // storage that does not answer must not hold up the end
}

FolderLock::~FolderLock() {
  constexpr std::chrono::seconds kWait(5);
  std::unique_lock guard(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  if (state_->changed.wait_for(guard, kWait, [this] { return state_->ended; })) {
    if (state_->file->is_at_path()) {
      ::unlink(state_->path.c_str()); // before the lock is released, so that nobody else's file is removed
    }
    state_->file.reset();
  }
}

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::take(const std::string& folder, const LockOptions& options) {
  ASSIGN_OR_RETURN(TakenLock lock, take_lock(folder, options));
  auto state = std::make_shared<State>(folder, std::move(lock.file), std::move(lock.text), options);
  return std::unique_ptr<FolderLock>(new FolderLock(std::move(state), std::move(lock.taken_over)));
}

absl::Status FolderLock::check_free(const std::string& folder, const LockOptions& options) {
  return check_lock_free(folder, options);
}

std::optional<std::string> FolderLock::holder(const std::string& folder) {
  const std::string path = lock_path(folder);
  const auto file = LockFile::open(path, O_RDONLY);
  if (!file.ok()) {
    return std::nullopt;
  }
  const auto holder = LockHolder::parse(file->content());
  const Lock lock = file->probe();
  const bool runs = holder && process_state(*holder) == ProcessState::kRunning;
  const bool held = lock == Lock::kHeld || (lock == Lock::kNotSupported && runs);
  return held ? std::optional(holder_text(holder, path)) : std::nullopt;
}

} // namespace distill::trainer
