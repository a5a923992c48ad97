#include "trainer/launch/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>

#include "data/base/status_macros.h"
#include "trainer/launch/death.h"
#include "trainer/launch/exit_code.h"
#include "trainer/launch/rank_places.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/terminal.h"

namespace distill::launch {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kRememberedLines = 12;
constexpr std::chrono::seconds kReapTimeout{2}; // for killed ranks, which a device's driver may hold up

absl::Status system_error(const char* action) {
  return absl::InternalError(absl::StrCat("cannot ", action, ": ", std::strerror(errno)));
}

// A free TCP port of this host. Rank 0 inherits the bound socket, so that no other process takes the port before rank 0
// listens on it.
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

// The process of one rank, and the lines of its standard error.
struct Child {
  int64_t rank = 0;
  pid_t pid = -1;
  int error_fd = -1;
  bool running = true;
  int exit_code = 0;
  int last_signal = 0; // the last signal with which this process has ended the rank, since another one had failed
  std::string pending; // a line whose end has not been read yet
  std::deque<std::string> last_lines;
};

// The ranks of this host as child processes.
class RankProcesses {
 public:
  explicit RankProcesses(const SpawnOptions& options) : options_(options) {}
  ~RankProcesses();
  absl::StatusOr<int> run();

 private:
  absl::Status start(int64_t rank, const Port& port);
  [[noreturn]] void become_rank(int64_t rank, const Port& port, int error_fd, pid_t parent);
  void relay(Child& child);
  void show(Child& child, const std::string& line); // a line of the rank
  static void print(Child& child, const std::string& text);
  std::string death_text(const Child& child, int status) const;
  void read_arguments();
  void block_signals();
  void wait_for_news() const;
  void send_signal(int number) const; // to every rank that still runs
  void end_running(int number); // sends the signal to every rank that still runs, since a rank has failed
  void collect_exits();
  void forward_signals();
  [[noreturn]] void end_at_once();
  void end_others();
  int result() const;
  bool any_running() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& child) { return child.running; });
  }

  SpawnOptions options_;
  std::vector<std::string> arguments_;
  std::vector<char*> argv_; // arguments_ for execv, null-terminated
  std::vector<Child> children_;
  sigset_t signals_{}, former_signals_{};
  int signal_fd_ = -1;
  bool signalled_ = false; // a stop signal has arrived
  int interrupts_ = 0; // number of SIGINTs
  bool ending_at_once_ = false;
  std::unique_ptr<RankPlaces> places_;
  std::optional<int64_t> out_of_memory_kills_before_;
  const Child* first_failed_ = nullptr;
  Clock::time_point kill_at_{};
};

RankProcesses::~RankProcesses() {
  send_signal(SIGKILL);
  for (const Child& child : children_) {
    if (child.error_fd >= 0) {
      ::close(child.error_fd);
    }
  }
  if (signal_fd_ >= 0) {
    ::close(signal_fd_);
    ::sigprocmask(SIG_SETMASK, &former_signals_, nullptr);
  }
}

void RankProcesses::become_rank(int64_t rank, const Port& port, int error_fd, pid_t parent) {
  sigset_t inherited = former_signals_;
  for (const int number : stop_signals()) { // blocked until the rank handles them (StopSignal)
    ::sigaddset(&inherited, number);
  }
  ::sigprocmask(SIG_SETMASK, &inherited, nullptr);
  ::setpgid(0, 0); // Ctrl-C on a terminal reaches the parent alone, which forwards it once
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) { // the parent has died before prctl
    std::_Exit(kRuntimeFailure);
  }
  ::dup2(error_fd, STDERR_FILENO);
  const std::string size = std::to_string(options_.processes), number = std::to_string(rank);
  ::setenv("RANK", number.c_str(), 1);
  ::setenv("LOCAL_RANK", number.c_str(), 1);
  ::setenv("WORLD_SIZE", size.c_str(), 1);
  ::setenv("LOCAL_WORLD_SIZE", size.c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port.number).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "=lo", /*overwrite=*/0); // all ranks are on this host
  places_->hand_to(rank);
  if (rank == 0) {
    ::fcntl(port.fd, F_SETFD, 0); // stays open in the new program
    ::setenv(kListenFdVariable, std::to_string(port.fd).c_str(), 1);
  }
  ::execv("/proc/self/exe", argv_.data());
  std::fprintf(stderr, "cannot start rank %s: %s\n", number.c_str(), std::strerror(errno));
  std::_Exit(kRuntimeFailure);
}

absl::Status RankProcesses::start(int64_t rank, const Port& port) {
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

void RankProcesses::show(Child& child, const std::string& line) {
  // Log lines of ranks other than 0 name their rank, host and device; lines that libraries print do not.
  const bool named = child.rank == 0 || line.find(absl::StrCat("[rank ", child.rank, " on ")) != std::string::npos;
  print(child, named ? line : absl::StrCat("[rank ", child.rank, "] ", line));
}

void RankProcesses::print(Child& child, const std::string& text) {
  // The bar of rank 0 may stand on this terminal's last line; rank 0 draws it again at its next step.
  const char* erase = metrics::rewrites_lines(STDERR_FILENO) ? metrics::kEraseLine : "";
  std::fprintf(stderr, "%s%s\n", erase, text.c_str());
  child.last_lines.push_back(text);
  if (child.last_lines.size() > kRememberedLines) {
    child.last_lines.pop_front();
  }
}

// Forwards the whole lines of a rank's standard error that are there.
void RankProcesses::relay(Child& child) {
  char buffer[4096];
  while (child.error_fd >= 0) {
    const ssize_t count = ::read(child.error_fd, buffer, sizeof(buffer));
    if (count < 0) {
      return; // no more for now
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

void RankProcesses::collect_exits() {
  for (Child& child : children_) {
    int status = 0;
    if (!child.running || ::waitpid(child.pid, &status, WNOHANG) != child.pid) {
      continue;
    }
    relay(child);
    child.running = false;
    child.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : kRuntimeFailure;
    if (WIFSIGNALED(status) && !ending_at_once_) {
      print(child, death_text(child, status));
    }
    const bool failed = child.exit_code != kSuccess && child.exit_code != kStoppedBySignal;
    if (failed && first_failed_ == nullptr && !ending_at_once_) {
      first_failed_ = &child;
      end_others();
    }
  }
}

std::string RankProcesses::death_text(const Child& child, int status) const {
  const auto name = [](const Child& rank) { return absl::StrCat("rank ", rank.rank); };
  const Death death{
      name(child), WTERMSIG(status), WCOREDUMP(status) != 0, places_->place(child.rank),
      out_of_memory_kills_since(out_of_memory_kills_before_)};
  const bool sent = first_failed_ != nullptr && child.last_signal == death.signal;
  return sent ? ended_text(death, name(*first_failed_)) : killed_text(death);
}

void RankProcesses::send_signal(int number) const {
  for (const Child& child : children_) {
    if (child.running) {
      ::kill(child.pid, number);
    }
  }
}

void RankProcesses::end_running(int number) {
  send_signal(number);
  for (Child& child : children_) {
    child.last_signal = child.running ? number : child.last_signal;
  }
}

void RankProcesses::end_others() {
  end_running(SIGTERM);
  kill_at_ = Clock::now() + options_.grace;
}

void RankProcesses::forward_signals() {
  signalfd_siginfo info{};
  while (::read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) {
      continue;
    }
    interrupts_ += number == SIGINT ? 1 : 0;
    if (interrupts_ > 1) {
      end_at_once();
    }
    if (!std::exchange(signalled_, true)) {
      write_notice(first_signal_notice(number, options_.consequence).c_str());
    }
    send_signal(number);
  }
}

// Kills the ranks, and then ends this process by SIGINT's default.
void RankProcesses::end_at_once() {
  ending_at_once_ = true;
  write_notice(kSecondInterruptNotice);
  send_signal(SIGKILL);
  const Clock::time_point limit = Clock::now() + kReapTimeout;
  while (any_running() && Clock::now() < limit) {
    collect_exits();
    ::poll(nullptr, 0, /*timeout=*/5);
  }
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  sigset_t interrupt;
  ::sigemptyset(&interrupt);
  ::sigaddset(&interrupt, SIGINT);
  ::sigprocmask(SIG_UNBLOCK, &interrupt, nullptr); // ends this process
  std::_Exit(kRuntimeFailure);
}

int RankProcesses::result() const {
  if (first_failed_ != nullptr) {
    return first_failed_->exit_code;
  }
  int largest = 0;
  for (const Child& child : children_) {
    largest = std::max(largest, child.exit_code);
  }
  return largest;
}

void RankProcesses::read_arguments() {
  std::ifstream command_line("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(command_line, argument, '\0');) {
    arguments_.push_back(argument);
  }
  for (std::string& argument : arguments_) {
    argv_.push_back(argument.data());
  }
  argv_.push_back(nullptr);
}

void RankProcesses::block_signals() {
  ::sigemptyset(&signals_);
  for (const int number : stop_signals()) {
    ::sigaddset(&signals_, number);
  }
  ::sigaddset(&signals_, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &signals_, &former_signals_);
  signal_fd_ = ::signalfd(-1, &signals_, SFD_NONBLOCK | SFD_CLOEXEC);
}

// Returns when a signal has arrived, a rank has printed something, or 200 ms have passed.
void RankProcesses::wait_for_news() const {
  std::vector<pollfd> polled{{signal_fd_, POLLIN, 0}};
  for (const Child& child : children_) {
    if (child.error_fd >= 0) {
      polled.push_back({child.error_fd, POLLIN, 0});
    }
  }
  ::poll(polled.data(), polled.size(), /*timeout=*/200);
}

absl::StatusOr<int> RankProcesses::run() {
  read_arguments();
  Port port;
  RETURN_IF_ERROR(port.take());
  ASSIGN_OR_RETURN(places_, RankPlaces::create(options_.processes));
  out_of_memory_kills_before_ = out_of_memory_kills();
  block_signals();
  children_.reserve(static_cast<size_t>(options_.processes)); // first_failed_ points into it
  for (int64_t rank = 0; rank < options_.processes; ++rank) {
    RETURN_IF_ERROR(start(rank, port));
  }
  port.release(); // when rank 0 ends, connections to its port must fail and not wait
  while (any_running()) {
    wait_for_news();
    forward_signals();
    for (Child& child : children_) {
      relay(child);
    }
    collect_exits();
    if (first_failed_ != nullptr && Clock::now() >= kill_at_) {
      end_running(SIGKILL);
    }
  }
  if (first_failed_ != nullptr) {
    const bool logged = !options_.log_file.empty() && ::access(options_.log_file.c_str(), F_OK) == 0;
    std::fprintf(
        stderr, "distill: rank %ld failed first%s; its last lines:\n", static_cast<long>(first_failed_->rank),
        logged ? absl::StrCat(" (log: ", options_.log_file, ")").c_str() : "");
    for (const std::string& line : first_failed_->last_lines) {
      std::fprintf(stderr, "  %s\n", line.c_str());
    }
  }
  return result();
}

} // namespace

absl::StatusOr<int> spawn_ranks(const SpawnOptions& options) {
  return RankProcesses(options).run();
}

} // namespace distill::launch
