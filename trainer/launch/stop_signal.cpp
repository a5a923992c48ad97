#include "trainer/launch/stop_signal.h"

#include <csignal>
#include <cstddef>

namespace distill::launch {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGUSR1};
struct sigaction former_actions[std::size(kSignals)];
volatile std::sig_atomic_t received_signal = 0;

void on_signal(int number) {
  if (received_signal == SIGINT && number == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  received_signal = number;
}

} // namespace

StopSignal::StopSignal() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &action, &former_actions[i]);
  }
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : kSignals) {
    sigaddset(&handled, number);
  }
  pthread_sigmask(SIG_UNBLOCK, &handled, nullptr);
}

StopSignal::~StopSignal() {
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &former_actions[i], nullptr);
  }
}

int StopSignal::received() const {
  return received_signal;
}

} // namespace distill::launch
