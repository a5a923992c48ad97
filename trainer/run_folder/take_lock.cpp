#include "trainer/run_folder/take_lock.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/time.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <thread>

#include "data/base/status_macros.h"
#include "trainer/metrics/log.h"

namespace distill::trainer {

namespace fs = std::filesystem;

std::string lock_path(const std::string& folder) {
  return (fs::path(folder) / kLockFile).string();
}

std::string holder_text(const std::optional<LockHolder>& holder, const std::string& path) {
  return holder ? holder->text() : absl::StrCat("a process that ", path, " does not name");
}

namespace {

using Clock = std::chrono::steady_clock;
using Lock = LockFile::Lock;

constexpr std::chrono::milliseconds kPoll(20);
constexpr std::chrono::milliseconds kHalfWritten(200); // a file may be without its content for so long
constexpr int kMaxAttempts = 100; // that find the file replaced

absl::Status in_use(const std::string& folder, const std::optional<LockHolder>& holder) {
  return absl::FailedPreconditionError(absl::StrCat(
      "run.dir: ", folder, " is in use by ", holder_text(holder, lock_path(folder)),
      "; wait until that job has ended, stop it, or name another run.dir"));
}

// How long a lock that is held is waited for before it is an error.
class HeldWait {
 public:
  HeldWait(std::string folder, const LockOptions& options)
      : folder_(std::move(folder)), options_(options), began_(Clock::now()) {}

  // Ok: look again.
  absl::Status wait(const std::optional<LockHolder>& holder) const {
    const bool ending = holder && process_state(*holder) == ProcessState::kEnding;
    if (Clock::now() >= began_ + (ending ? options_.ending : options_.busy)) {
      return in_use(folder_, holder);
    }
    std::this_thread::sleep_for(kPoll);
    return absl::OkStatus();
  }

 private:
  std::string folder_;
  const LockOptions& options_;
  Clock::time_point began_;
};

// What the lock file is: the holder that it names, and when the holder renewed it last.
struct Seen {
  std::string text;
  int64_t modified = 0; // nanoseconds since the epoch

  explicit Seen(const LockFile& file) : text(file.content()), modified(file.modified()) {}
  bool operator==(const Seen& other) const {
    return text == other.text && modified == other.modified;
  }
  std::optional<LockHolder> holder() const {
    return LockHolder::parse(text);
  }
};

std::string takeover_text(const std::string& folder, const Seen& seen) {
  return absl::StrCat(
      "run.dir: the lock of ", folder, " was left by ", holder_text(seen.holder(), lock_path(folder)),
      ", which ended without releasing it (last sign of life ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixNanos(seen.modified), absl::UTCTimeZone()),
      "); it has been taken over");
}

// One attempt after the other to take the lock.
class Taking {
 public:
  Taking(std::string folder, const LockOptions& options)
      : folder_(std::move(folder)), path_(lock_path(folder_)), options_(options), wait_(folder_, options) {}

  absl::StatusOr<LockFile> run();

  const std::string& own_text() const {
    return own_text_;
  }
  const std::string& taken_over() const {
    return taken_over_;
  }

 private:
  enum class Former {
    kDead,
    kAlive,
    kChanged, // the file is another one by now
  };
  Former judge(const Seen& seen, Lock lock) const;
  Former watch(const Seen& seen) const;
  bool changes(const Seen& seen, std::chrono::milliseconds within) const;
  void set_aside(const Seen& seen) const;
  absl::StatusOr<std::optional<LockFile>> attempt();

  std::string folder_;
  std::string path_;
  const LockOptions& options_;
  HeldWait wait_;
  std::string own_text_ = LockHolder::this_process().json();
  std::string taken_over_;
};

// Whether the file differs from what was seen. It is opened anew each time: NFS then asks the server.
bool Taking::changes(const Seen& seen, std::chrono::milliseconds within) const {
  for (const auto end = Clock::now() + within; Clock::now() < end;) {
    const auto file = LockFile::open(path_, O_RDONLY);
    if (!file.ok() || !(Seen(*file) == seen)) {
      return true;
    }
    std::this_thread::sleep_for(std::min(within / 20 + std::chrono::milliseconds(1), std::chrono::milliseconds(100)));
  }
  return false;
}

// For a holder whose process cannot be seen from here: is the file's time renewed?
Taking::Former Taking::watch(const Seen& seen) const {
  const absl::Duration age = absl::Now() - absl::FromUnixNanos(seen.modified);
  if (age > absl::FromChrono(options_.old)) {
    return Former::kDead;
  }
  metrics::log_warning(absl::StrCat(
      "run.dir: ", folder_, " was used by ", holder_text(seen.holder(), path_),
      ", which cannot be seen from here; waiting ", absl::FormatDuration(absl::FromChrono(options_.silence)),
      " to see whether it still runs"));
  if (!changes(seen, options_.silence)) {
    return Former::kDead;
  }
  const auto file = LockFile::open(path_, O_RDONLY);
  return file.ok() && file->content() == seen.text ? Former::kAlive : Former::kChanged;
}

// Whether the holder that an existing file names is dead. `lock`: what locking the file came to.
Taking::Former Taking::judge(const Seen& seen, Lock lock) const {
  const auto holder = seen.holder();
  if (!holder && changes(seen, kHalfWritten)) {
    return Former::kChanged;
  }
  if (lock == Lock::kFree && (!holder || holder->same_kernel())) {
    return Former::kDead; // it would hold the lock
  }
  switch (holder ? process_state(*holder) : ProcessState::kUnknown) {
    case ProcessState::kRunning:
    case ProcessState::kEnding:
      return lock == Lock::kFree ? Former::kDead : Former::kAlive;
    case ProcessState::kGone:
      return Former::kDead;
    case ProcessState::kUnknown:
      break;
  }
  return watch(seen);
}

// Without locks: removes the file of a dead holder. Another process may have taken it over in the meantime, whose file
// is then put back; it looks again after a while (see attempt()).
void Taking::set_aside(const Seen& seen) const {
  const LockHolder self = LockHolder::this_process();
  const std::string aside = absl::StrCat(path_, ".", self.host, ".", self.pid);
  if (::rename(path_.c_str(), aside.c_str()) != 0) {
    return;
  }
  const auto file = LockFile::open(aside, O_RDONLY);
  if (file.ok() && file->content() != seen.text && ::link(aside.c_str(), path_.c_str()) != 0 && errno != EEXIST) {
    ::rename(aside.c_str(), path_.c_str()); // no hard links here
  }
  ::unlink(aside.c_str());
}

// nullopt: look again.
absl::StatusOr<std::optional<LockFile>> Taking::attempt() {
  auto file = LockFile::open(path_, O_RDWR);
  const bool created = absl::IsNotFound(file.status());
  if (created) {
    file = LockFile::open(path_, O_RDWR | O_CREAT | O_EXCL);
  }
  if (absl::IsAlreadyExists(file.status())) {
    return std::optional<LockFile>();
  }
  RETURN_IF_ERROR(file.status());
  const Lock lock = options_.advisory ? file->lock() : Lock::kNotSupported;
  if (lock == Lock::kHeld) {
    RETURN_IF_ERROR(wait_.wait(LockHolder::parse(file->content())));
    return std::optional<LockFile>();
  }
  if (!file->is_at_path()) { // its holder has ended and removed it
    return std::optional<LockFile>();
  }
  if (!created) {
    const Seen seen(*file);
    const Former former = judge(seen, lock);
    if (former == Former::kAlive) {
      RETURN_IF_ERROR(wait_.wait(seen.holder()));
    }
    if (former != Former::kDead) {
      return std::optional<LockFile>();
    }
    taken_over_ = takeover_text(folder_, seen);
    if (lock == Lock::kNotSupported) {
      set_aside(seen);
      return std::optional<LockFile>();
    }
  }
  if (absl::Status status = file->write(own_text_); !status.ok()) {
    ::unlink(path_.c_str()); // nobody's name is in it
    return status;
  }
  if (lock == Lock::kNotSupported && !taken_over_.empty()) {
    std::this_thread::sleep_for(kHalfWritten); // for another process that is in set_aside()
    if (!file->is_at_path()) {
      return std::optional<LockFile>();
    }
  }
  return std::optional<LockFile>(*std::move(file));
}

absl::StatusOr<LockFile> Taking::run() {
  const auto give_up = Clock::now() + options_.ending + options_.silence;
  for (int attempts = 0; attempts < kMaxAttempts || Clock::now() < give_up; ++attempts) {
    ASSIGN_OR_RETURN(std::optional<LockFile> file, attempt());
    if (file) {
      return *std::move(file);
    }
  }
  return absl::InternalError(absl::StrCat(path_, ": cannot be locked: the file is replaced again and again"));
}

} // namespace

absl::StatusOr<TakenLock> take_lock(const std::string& folder, const LockOptions& options) {
  Taking taking(folder, options);
  ASSIGN_OR_RETURN(LockFile file, taking.run());
  return TakenLock{std::move(file), taking.own_text(), taking.taken_over()};
}

absl::Status check_lock_free(const std::string& folder, const LockOptions& options) {
  const HeldWait wait(folder, options);
  for (;;) {
    const auto file = LockFile::open(lock_path(folder), O_RDONLY);
    if (!file.ok()) {
      return absl::OkStatus(); // take() says what is wrong with a file that cannot be opened
    }
    const auto holder = LockHolder::parse(file->content());
    const Lock lock = options.advisory ? file->probe() : Lock::kNotSupported;
    const bool runs = holder && process_state(*holder) == ProcessState::kRunning;
    if (lock == Lock::kFree || (lock == Lock::kNotSupported && !runs)) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(wait.wait(holder));
  }
}

} // namespace distill::trainer
