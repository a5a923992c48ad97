#include "trainer/launch/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>

#include "trainer/launch/ranks.h"

namespace distill::launch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kRememberedLines = 12;

absl::Status system_error(const char* action) {
  return absl::InternalError(absl::StrCat("cannot ", action, ": ", std::strerror(errno)));
}

// A TCP port of this host that is ours: rank 0 is handed the socket, so that nobody takes the port before it listens.
struct Port {
  int fd = -1;
  int number = 0;

  Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  ~Port() {
    release();
  }
  absl::Status take() {
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      return system_error("take a free port");
    }
    number = ntohs(address.sin_port);
    return absl::OkStatus();
  }
  void release() {
    if (fd >= 0) {
      ::close(std::exchange(fd, -1));
    }
  }
};

// One rank's process and the lines of its standard error.
struct Child {
  int64_t rank = 0;
  pid_t pid = -1;
  int error_fd = -1;
  bool running = true;
  int exit_code = 0;
  std::string pending; // an unfinished line
  std::deque<std::string> last_lines;
};

class Launcher {
 public:
  explicit Launcher(const SpawnOptions& options) : options_(options) {}
  ~Launcher();
  absl::StatusOr<int> run();

 private:
  absl::Status start(int64_t rank, const Port& port);
  [[noreturn]] void become_rank(int64_t rank, const Port& port, int error_fd, pid_t parent);
  void relay(Child& child);
  void show(Child& child, const std::string& line);
  void collect_exits();
  void forward_signal();
  void end_others();
  int result() const;
  bool any_running() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }

  SpawnOptions options_;
  std::vector<std::string> arguments_;
  std::vector<char*> argv_; // of them, null-terminated
  std::vector<Child> children_;
  sigset_t signals_{}, former_signals_{};
  int signal_fd_ = -1;
  const Child* first_failed_ = nullptr;
  Clock::time_point kill_at_{};
};

Launcher::~Launcher() {
  for (const Child& child : children_) {
    if (child.running) {
      ::kill(child.pid, SIGKILL);
    }
    if (child.error_fd >= 0) {
      ::close(child.error_fd);
    }
  }
  if (signal_fd_ >= 0) {
    ::close(signal_fd_);
    ::sigprocmask(SIG_SETMASK, &former_signals_, nullptr);
  }
}

void Launcher::become_rank(int64_t rank, const Port& port, int error_fd, pid_t parent) {
  sigset_t inherited = former_signals_;
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) { // until the rank handles them (StopSignal)
    ::sigaddset(&inherited, number);
  }
  ::sigprocmask(SIG_SETMASK, &inherited, nullptr);
  ::setpgid(0, 0); // a terminal's Ctrl-C reaches the parent alone, which forwards it once
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) { // it has died before
    std::_Exit(1);
  }
  ::dup2(error_fd, STDERR_FILENO);
  const std::string size = std::to_string(options_.processes), number = std::to_string(rank);
  ::setenv("RANK", number.c_str(), 1);
  ::setenv("LOCAL_RANK", number.c_str(), 1);
  ::setenv("WORLD_SIZE", size.c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", size.c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port.number).c_str(), 1);
  if (rank == 0) {
    ::fcntl(port.fd, F_SETFD, 0); // stays open
    ::setenv(kListenFdVariable, std::to_string(port.fd).c_str(), 1);
  }
  ::execv("/proc/self/exe", argv_.data());
  std::fprintf(stderr, "cannot start rank %s: %s\n", number.c_str(), std::strerror(errno));
  std::_Exit(1);
}

absl::Status Launcher::start(int64_t rank, const Port& port) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return system_error("make a pipe");
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) {
    become_rank(rank, port, fds[1], parent);
  }
  ::close(fds[1]);
  if (pid < 0) {
    ::close(fds[0]);
    return system_error("start a process");
  }
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  Child child;
  child.rank = rank;
  child.pid = pid;
  child.error_fd = fds[0];
  children_.push_back(std::move(child));
  return absl::OkStatus();
}

void Launcher::show(Child& child, const std::string& line) {
  // A rank's log says which one it is, with host and device; what libraries print does not.
  const bool named = child.rank == 0 || line.find(absl::StrCat("[rank ", child.rank, " on ")) != std::string::npos;
  const std::string text = named ? line : absl::StrCat("[rank ", child.rank, "] ", line);
  std::fprintf(stderr, "%s\n", text.c_str());
  child.last_lines.push_back(text);
  if (child.last_lines.size() > kRememberedLines) {
    child.last_lines.pop_front();
  }
}

// Passes on whole lines of a rank's standard error.
void Launcher::relay(Child& child) {
  char buffer[4096];
  while (child.error_fd >= 0) {
    const ssize_t count = ::read(child.error_fd, buffer, sizeof(buffer));
    if (count < 0) {
      return; // nothing now
    }
    if (count == 0) {
      ::close(child.error_fd);
      child.error_fd = -1;
      if (!child.pending.empty()) {
        show(child, std::exchange(child.pending, ""));
      }
      return;
    }
    child.pending.append(buffer, static_cast<size_t>(count));
    for (size_t end; (end = child.pending.find('\n')) != std::string::npos;) {
      show(child, child.pending.substr(0, end));
      child.pending.erase(0, end + 1);
    }
  }
}

void Launcher::collect_exits() {
  for (Child& child : children_) {
    int status = 0;
    if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) {
      continue;
    }
    relay(child);
    child.running = false;
    child.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (WIFSIGNALED(status)) {
      show(child, absl::StrCat("was ended by signal ", WTERMSIG(status), " (", strsignal(WTERMSIG(status)), ")"));
    }
    const bool failed = child.exit_code != 0 && child.exit_code != 3; // 3: stopped by a signal, state saved
    if (failed && first_failed_ == nullptr) {
      first_failed_ = &child;
      end_others();
    }
  }
}

void Launcher::end_others() {
  for (const Child& child : children_) {
    if (child.running) {
      ::kill(child.pid, SIGTERM);
    }
  }
  kill_at_ = Clock::now() + options_.grace;
}

void Launcher::forward_signal() {
  signalfd_siginfo info{};
  while (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) {
      continue;
    }
    for (const Child& child : children_) {
      if (child.running) {
        ::kill(child.pid, static_cast<int>(info.ssi_signo));
      }
    }
  }
}

int Launcher::result() const {
  if (first_failed_ != nullptr) {
    return first_failed_->exit_code;
  }
  int largest = 0;
  for (const Child& child : children_) {
    largest = std::max(largest, child.exit_code);
  }
  return largest;
}

absl::StatusOr<int> Launcher::run() {
  std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(command_line, argument, '\0');) {
    arguments_.push_back(argument);
  }
  for (std::string& argument : arguments_) {
    argv_.push_back(argument.data());
  }
  argv_.push_back(nullptr);
  Port port;
  if (absl::Status status = port.take(); !status.ok()) {
    return status;
  }
  ::sigemptyset(&signals_);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) {
    ::sigaddset(&signals_, number);
  }
  ::sigprocmask(SIG_BLOCK, &signals_, &former_signals_);
  signal_fd_ = ::signalfd(-1, &signals_, SFD_NONBLOCK | SFD_CLOEXEC);
  children_.reserve(static_cast<size_t>(options_.processes)); // first_failed_ points into it
  for (int64_t rank = 0; rank < options_.processes; ++rank) {
    if (absl::Status status = start(rank, port); !status.ok()) {
      return status;
    }
  }
  port.release(); // once rank 0 is gone, nobody is to be kept waiting at its port
  while (any_running()) {
    std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}};
    for (const Child& child : children_) {
      if (child.error_fd >= 0) {
        polled.push_back({child.error_fd, POLLIN, 0});
      }
    }
    ::poll(polled.data(), polled.size(), /*timeout=*/200);
    forward_signal();
    for (Child& child : children_) {
      relay(child);
    }
    collect_exits();
    if (first_failed_ != nullptr && Clock::now() >= kill_at_) {
      for (const Child& child : children_) {
        if (child.running) {
          ::kill(child.pid, SIGKILL);
        }
      }
    }
  }
  if (first_failed_ != nullptr) {
    std::fprintf(stderr, "distill: rank %ld failed first; it said last:\n", static_cast<long>(first_failed_->rank));
    for (const std::string& line : first_failed_->last_lines) {
      std::fprintf(stderr, "  %s\n", line.c_str());
    }
  }
  return result();
}

} // namespace

absl::StatusOr<int> spawn_ranks(const SpawnOptions& options) {
  return Launcher(options).run();
}

} // namespace distill::launch
