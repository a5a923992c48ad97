#include "trainer/launch/standard_streams.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "trainer/launch/exit_code.h"

namespace distill::launch {
namespace {

std::array<char, 1 << 18> output_buffer;
bool output_was_closed = false; // set before any thread exists

bool is_open(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF;
}

void only_interrupt_the_write(int number) {
  struct sigaction action {};
  if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
    return; // the parent process has chosen the same
  }
  action = {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(number, &action, nullptr);
}

// Whether standard output is a pipe or socket that nobody reads any more.
bool reader_is_gone() {
  pollfd polled{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&polled, 1, /*timeout=*/0) == 1 && (polled.revents & POLLERR) != 0;
}

} // namespace

void prepare_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (is_open(descriptor)) {
      continue;
    }
    output_was_closed |= descriptor == STDOUT_FILENO;
    if (::open("/dev/null", O_RDWR) != descriptor) { // the lowest free number, since those below it are open
      std::_Exit(kRuntimeFailure); // there is nowhere to say why
    }
  }
  if (::isatty(STDOUT_FILENO) != 1) {
    // A result fits into the buffer, so that the one write at the end reports why it has failed.
    std::setvbuf(stdout, output_buffer.data(), _IOFBF, output_buffer.size());
  }
  only_interrupt_the_write(SIGPIPE);
  only_interrupt_the_write(SIGXFSZ);
}

absl::Status flush_standard_output() {
  errno = 0;
  const bool failed_before = std::ferror(stdout) != 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int error = errno;
  if (output_was_closed) {
    return absl::InternalError("standard output: expected an open file, found it closed; the result is lost");
  }
  if (flushed && !failed_before) {
    return absl::OkStatus();
  }
  if (error == EPIPE || reader_is_gone()) {
    return absl::CancelledError("standard output: cannot write: its reader has gone");
  }
  return absl::InternalError(absl::StrCat(
      "standard output: cannot write", error != 0 ? absl::StrCat(": ", std::strerror(error)) : "",
      "; the result is incomplete"));
}

} // namespace distill::launch
