#include "trainer/launch/stop_signal.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace distill::launch {
namespace {

// What the handler reads: lock-free atomics and text that is complete before the handler is installed.
std::atomic<int> received_signal{0};
std::atomic<int> interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);
std::array<std::array<char, 256>, NSIG> notices; // by signal, null-terminated; empty: none

void on_signal(int number) {
  const int saved_errno = errno;
  const bool first = received_signal.exchange(number) == 0;
  const char* notice = notices[static_cast<size_t>(number)].data();
  if (number == SIGINT && interrupts.fetch_add(1) > 0) {
    if (*notice != '\0') {
      write_notice(kSecondInterruptNotice);
    }
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT); // blocked until the handler has returned
  } else if (first) {
    write_notice(notice);
  }
  errno = saved_errno;
}

const char* signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name != nullptr ? name : "?";
}

} // namespace

const char kSecondInterruptNotice[] =
    "distill: second SIGINT: ending at once, this step is not saved; the newest complete checkpoint is as it was\n";

std::vector<int> stop_signals() {
  std::vector<int> signals{SIGINT, SIGTERM, SIGUSR1};
  struct sigaction hangup {};
  if (::sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
    signals.push_back(SIGHUP);
  }
  return signals;
}

std::string first_signal_notice(int number, const std::string& consequence) {
  // On a terminal the progress bar is on the line.
  return absl::StrCat(
      ::isatty(STDERR_FILENO) == 1 ? "\n" : "", "distill: SIG", signal_name(number), ": ", consequence,
      number == SIGINT ? "; a second SIGINT (Ctrl-C) ends at once, unsaved\n" : "\n");
}

void write_notice(const char* text) {
  for (size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = ::write(STDERR_FILENO, text, left);
    if (written < 0 && errno != EINTR) {
      return; // nobody reads it
    }
    const auto advance = static_cast<size_t>(written > 0 ? written : 0);
    text += advance;
    left -= advance;
  }
}

struct StopSignal::EarlierHandler {
  int number;
  struct sigaction action;
};

StopSignal::StopSignal(const std::string& consequence) {
  received_signal = 0;
  interrupts = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : stop_signals()) {
    std::array<char, 256>& notice = notices[static_cast<size_t>(number)];
    notice.fill('\0');
    if (!consequence.empty()) {
      first_signal_notice(number, consequence).copy(notice.data(), notice.size() - 1);
    }
    EarlierHandler earlier{number, {}};
    sigaction(number, &action, &earlier.action);
    earlier_handlers_.push_back(earlier);
    sigaddset(&handled, number);
  }
  pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
}

StopSignal::~StopSignal() {
  for (const EarlierHandler& earlier : earlier_handlers_) {
    sigaction(earlier.number, &earlier.action, nullptr);
  }
}

int StopSignal::received() const {
  return received_signal;
}

} // namespace distill::launch
