#include "trainer/launch/run_self.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "trainer/launch/death.h"
#include "trainer/launch/exit_code.h"

namespace distill::launch {

absl::StatusOr<int> run_self(const std::vector<std::string>& arguments, const std::string& output_file) {
  std::vector<char*> argv{const_cast<char*>("distill")};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const std::optional<int64_t> kills_before = out_of_memory_kills();
  const pid_t pid = ::fork();
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  if (pid == 0) {
    const int file = ::open(output_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (file < 0 || ::dup2(file, STDOUT_FILENO) < 0 || ::dup2(file, STDERR_FILENO) < 0) {
      std::_Exit(kRuntimeFailure);
    }
    ::execv("/proc/self/exe", argv.data());
    std::_Exit(kRuntimeFailure);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    std::ofstream(output_file, std::ios::app) << killed_text(
        {"the process", WTERMSIG(status), WCOREDUMP(status) != 0, "", out_of_memory_kills_since(kills_before)});
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kRuntimeFailure;
}

} // namespace distill::launch
