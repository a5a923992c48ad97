#include "trainer/launch/run_self.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace distill::launch {

absl::StatusOr<int> run_self(const std::vector<std::string>& arguments, const std::string& output_file) {
  std::vector<char*> argv{const_cast<char*>("distill")};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  if (pid == 0) {
    const int file = ::open(output_file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execv("/proc/self/exe", argv.data());
    std::_Exit(1);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

} // namespace distill::launch
