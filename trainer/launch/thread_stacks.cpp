#include "trainer/launch/thread_stacks.h"

#include <absl/debugging/symbolize.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace distill::launch {
namespace {

constexpr int kMaxFrames = 64;
constexpr std::chrono::milliseconds kAnswerTimeout{300};

int stack_signal() {
  return SIGRTMIN + 7;
}

// The signal handler of the asked thread writes its stack here. One thread is asked at a time; the handler of a thread
// that is no longer asked does nothing.
struct Answer {
  std::atomic<long> asked{0}; // thread id; 0: nobody
  void* frames[kMaxFrames];
  int count = 0;
  std::atomic<bool> done{false};
};
Answer answer;

void on_stack_signal(int) {
  const int saved = errno;
  if (answer.asked.load() == ::syscall(SYS_gettid)) {
    answer.count = ::backtrace(answer.frames, kMaxFrames);
    answer.done.store(true);
  }
  errno = saved;
}

std::string read_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Demangles with the C++ library, since Abseil's demangler does not know all names.
std::string demangled(const char* symbol) {
  int status = 0;
  char* name = symbol[0] == '_' ? abi::__cxa_demangle(symbol, nullptr, nullptr, &status) : nullptr;
  std::string text = name != nullptr ? name : symbol;
  std::free(name);
  return text;
}

std::string frame_text(void* address) {
  char symbol[512];
  Dl_info info{};
  std::string text = absl::StrFormat("    %p", address);
  if (absl::Symbolize(
          static_cast<char*>(address) - 1, symbol, sizeof(symbol))) { // an address within the call instruction
    absl::StrAppend(&text, " ", demangled(symbol));
  }
  if (::dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    absl::StrAppendFormat(
        &text, " (%s+0x%x)", std::filesystem::path(info.dli_fname).filename().string(),
        static_cast<char*>(address) - static_cast<char*>(info.dli_fbase));
  }
  return text;
}

// The frames of one thread, or a note that it has ended or does not answer.
std::string ask(long thread) {
  answer.done.store(false);
  answer.asked.store(thread);
  if (::syscall(SYS_tgkill, ::getpid(), thread, stack_signal()) != 0) {
    return "    has ended\n";
  }
  const auto deadline = std::chrono::steady_clock::now() + kAnswerTimeout;
  while (!answer.done.load() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  answer.asked.store(0);
  if (!answer.done.load()) {
    return "    does not answer: it is in the kernel, or blocks signals\n";
  }
  std::string text;
  for (int i = 2; i < answer.count; ++i) { // skips the handler and its caller
    absl::StrAppend(&text, frame_text(answer.frames[i]), "\n");
  }
  return text;
}

} // namespace

void prepare_thread_stacks() {
  void* frames[4];
  ::backtrace(frames, 4); // loads the unwinder
  absl::InitializeSymbolizer("");
  struct sigaction action {};
  action.sa_handler = on_stack_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(stack_signal(), &action, nullptr);
}

std::string thread_stacks() {
  std::string text;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc/self/task", error), end; !error && it != end;
       it.increment(error)) {
    const std::string folder = it->path().string();
    const long thread = std::atol(it->path().filename().c_str());
    const std::string stat = read_line(folder + "/stat");
    const size_t state = stat.rfind(") ");
    absl::StrAppend(
        &text, "thread ", thread, " (", read_line(folder + "/comm"), "), state ",
        state == std::string::npos ? "?" : stat.substr(state + 2, 1), ", in the kernel at ",
        read_line(folder + "/wchan"), "\n", ask(thread));
  }
  return text;
}

} // namespace distill::launch
