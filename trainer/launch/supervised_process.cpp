#include "trainer/launch/supervised_process.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

namespace distill::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPollMs = 20;
constexpr int kCannotRun = 127; // as a shell's exit code
constexpr std::streamoff kTailBytes = 16 << 10;

absl::Status system_error(const std::string& action) {
  return absl::InternalError(absl::StrCat("cannot ", action, ": ", std::strerror(errno)));
}

// Signals of the terminal and of a job scheduler reach this program's ranks, which decide when the command ends.
constexpr int kIgnored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};

void set_signals(void (*handler)(int)) {
  for (const int number : kIgnored) {
    std::signal(number, handler);
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// The supervisor's children. They and their descendants are all that is left of the command, since the supervisor is
// the reaper of processes whose parent has ended.
std::vector<pid_t> children() {
  const pid_t own = ::getpid();
  std::vector<pid_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    pid_t pid = 0;
    std::string line;
    if (!absl::SimpleAtoi(it->path().filename().string(), &pid) ||
        !std::getline(std::ifstream(it->path() / "stat"), line)) {
      continue;
    }
    // "PID (NAME) STATE PARENT ...", where the name may have any characters.
    const std::vector<std::string> fields = absl::StrSplit(line.substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
    pid_t parent = 0;
    if (fields.size() > 1 && absl::SimpleAtoi(fields[1], &parent) && parent == own) {
      found.push_back(pid);
    }
  }
  return found;
}

// Kills every descendant: the children of a process that is killed become the supervisor's, and are killed in the next
// round.
void kill_descendants(pid_t group) {
  ::kill(-group, SIGKILL);
  while (true) {
    for (const pid_t pid : children()) {
      ::kill(pid, SIGKILL);
    }
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD) {
      return;
    }
    ::poll(nullptr, 0, kPollMs);
  }
}

[[noreturn]] void become_command(const char* command, pid_t supervisor) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) {
    std::_Exit(kCannotRun);
  }
  set_signals(SIG_DFL);
  ::execl("/bin/sh", "sh", "-c", command, static_cast<char*>(nullptr));
  std::fprintf(stderr, "cannot run /bin/sh: %s\n", std::strerror(errno));
  std::_Exit(kCannotRun);
}

// Waits for the command; ends it when the other end of the pipe is closed. Returns its exit code.
int supervise(int pipe, const char* command) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  set_signals(SIG_IGN);
  const pid_t own = ::getpid(), child = ::fork();
  if (child == 0) {
    become_command(command, own);
  }
  if (child < 0) {
    std::fprintf(stderr, "cannot start a process: %s\n", std::strerror(errno));
    return kCannotRun;
  }
  ::setpgid(child, child);
  bool ending = false;
  Clock::time_point kill_at{};
  while (true) {
    int status = 0;
    for (pid_t ended; (ended = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (ended == child) {
        kill_descendants(child);
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      }
    }
    pollfd news{pipe, POLLIN, 0};
    if (ending) {
      ::poll(nullptr, 0, kPollMs);
    } else if (::poll(&news, 1, kPollMs) > 0) { // nothing is ever written: the other end is closed
      ending = true;
      kill_at = Clock::now() + SupervisedProcess::kGrace;
      ::kill(-child, SIGTERM);
    }
    if (ending && Clock::now() >= kill_at) {
      kill_descendants(child);
      return 128 + SIGKILL;
    }
  }
}

} // namespace

absl::StatusOr<std::unique_ptr<SupervisedProcess>> SupervisedProcess::start(
    const std::string& command, const std::string& output_file) {
  const int output = ::open(output_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (output < 0) {
    return system_error("open " + output_file);
  }
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    ::close(output);
    return system_error("make a pipe");
  }
  const std::string pipe = std::to_string(fds[0]);
  const char* const arguments[] = {"distill", kSuperviseArgument, pipe.c_str(), command.c_str(), nullptr};
  const pid_t pid = ::fork();
  if (pid == 0) { // only async-signal-safe calls until the new program runs
    ::setpgid(0, 0);
    ::fcntl(fds[0], F_SETFD, 0);
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
    const int none = ::open("/dev/null", O_RDONLY);
    ::dup2(none, STDIN_FILENO);
    ::execv("/proc/self/exe", const_cast<char* const*>(arguments));
    ::_exit(kCannotRun);
  }
  ::close(output);
  ::close(fds[0]);
  if (pid < 0) {
    ::close(fds[1]);
    return system_error("start a process");
  }
  return std::unique_ptr<SupervisedProcess>(new SupervisedProcess(pid, fds[1]));
}

std::optional<int> SupervisedProcess::poll() {
  int status = 0;
  if (supervisor_ > 0 && ::waitpid(supervisor_, &status, WNOHANG) == supervisor_) {
    supervisor_ = -1;
    exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  return exit_code_;
}

void SupervisedProcess::end() {
  if (pipe_ >= 0) {
    ::close(std::exchange(pipe_, -1));
  }
  while (!poll()) {
    ::poll(nullptr, 0, kPollMs);
  }
}

SupervisedProcess::~SupervisedProcess() {
  end();
}

std::string exit_text(int code) {
  if (code <= 128) {
    return absl::StrCat("exit code ", code);
  }
  const char* name = ::sigdescr_np(code - 128);
  return absl::StrCat("signal ", code - 128, name != nullptr ? absl::StrCat(" (", name, ")") : "");
}

std::string last_lines(const std::string& file, int lines) {
  std::ifstream in(file, std::ios::binary);
  in.seekg(0, std::ios::end);
  in.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(in.tellg()) - kTailBytes));
  const std::string tail((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::string> all = absl::StrSplit(tail, '\n', absl::SkipWhitespace());
  std::string out;
  for (size_t i = all.size() - std::min(all.size(), static_cast<size_t>(lines)); i < all.size(); ++i) {
    absl::StrAppend(&out, "\n  ", all[i]);
  }
  return out;
}

std::optional<int> run_supervisor(int argc, char** argv) {
  int pipe = -1;
  if (argc != 4 || std::strcmp(argv[1], kSuperviseArgument) != 0 || !absl::SimpleAtoi(argv[2], &pipe)) {
    return std::nullopt;
  }
  // Of this program's files, the command gets those of the standard streams alone.
  ::close_range(STDERR_FILENO + 1, static_cast<unsigned>(pipe) - 1, 0);
  ::close_range(static_cast<unsigned>(pipe) + 1, ~0U, 0);
  ::fcntl(pipe, F_SETFD, FD_CLOEXEC);
  return supervise(pipe, argv[3]);
}

} // namespace distill::launch
