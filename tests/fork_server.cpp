// Starts a program many times for the price of one: most of the 0.3 s in which distill starts are spent by libtorch,
// which registers its operators before main(). Loaded with LD_PRELOAD, this library holds the program there, waits for
// requests on a socket, and forks for each: the child goes on into main() with the request's arguments, environment,
// folder and standard streams, as if it had just been started. tests/program_runs.py is the other side.
//
// A request: the descriptors 0, 1, 2, then an int64_t, the number of bytes that follow, and these bytes: the folder,
// the number of arguments, the arguments, the environment, each ended by a 0. The answer: the status of waitpid(), an
// int.
#include <dlfcn.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Main = int(int, char**, char**);

constexpr const char* kCommandLine = "/proc/self/cmdline";
constexpr int kFailed = 126; // the exit code of a server or a child that cannot go on
Main* program = nullptr;
int command_line = -1; // a file with the arguments of this process, which the system takes for those of the server

struct Request {
  int streams[3] = {-1, -1, -1};
  std::vector<char> bytes; // the arguments and the environment lie there
  const char* folder = nullptr;
  std::vector<char*> arguments, environment; // each ended by nullptr
};

bool receive(int connection, void* to, size_t count) {
  for (auto* place = static_cast<char*>(to); count > 0;) {
    const ssize_t got = ::read(connection, place, count);
    if (got <= 0) {
      return false;
    }
    place += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

bool receive_streams(int connection, int (&streams)[3]) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(streams))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(connection, &message, 0) != 1) {
    return false;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(streams))) {
    return false;
  }
  std::memcpy(streams, CMSG_DATA(header), sizeof(streams));
  return true;
}

bool receive(int connection, Request& request) {
  int64_t count = 0;
  if (!receive_streams(connection, request.streams) || !receive(connection, &count, sizeof(count)) || count <= 0) {
    return false;
  }
  request.bytes.resize(static_cast<size_t>(count));
  if (!receive(connection, request.bytes.data(), request.bytes.size()) || request.bytes.back() != 0) {
    return false;
  }
  std::vector<char*> texts;
  for (char* text = request.bytes.data(); text < request.bytes.data() + count; text += std::strlen(text) + 1) {
    texts.push_back(text);
  }
  const size_t arguments = texts.size() < 2 ? 0 : std::strtoul(texts[1], nullptr, 10);
  if (arguments == 0 || arguments > texts.size() - 2) {
    return false;
  }
  const auto first = texts.begin() + 2, second = first + static_cast<std::ptrdiff_t>(arguments);
  request.folder = texts[0];
  request.arguments.assign(first, second);
  request.environment.assign(second, texts.end());
  request.arguments.push_back(nullptr);
  request.environment.push_back(nullptr);
  return true;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

void write_command_line(const Request& request) {
  command_line = ::memfd_create("cmdline", MFD_CLOEXEC);
  for (size_t i = 0; i + 1 < request.arguments.size(); ++i) {
    const size_t bytes = std::strlen(request.arguments[i]) + 1;
    if (::write(command_line, request.arguments[i], bytes) != static_cast<ssize_t>(bytes)) {
      std::_Exit(kFailed);
    }
  }
}

int run_program(Request& request) {
  for (int stream = 0; stream < 3; ++stream) {
    ::dup2(request.streams[stream], stream);
  }
  ::close_range(3, ~0U, 0);
  if (::chdir(request.folder) != 0) {
    return kFailed;
  }
  write_command_line(request);
  environ = request.environment.data();
  return program(static_cast<int>(request.arguments.size()) - 1, request.arguments.data(), environ);
}

// Waits for the child, or for the other side to go away, which ends the child.
[[noreturn]] void wait_for(pid_t child, int connection) {
  const int process = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
  pollfd either[] = {{process, POLLIN, 0}, {connection, POLLIN, 0}};
  while (::poll(either, 2, -1) < 0) {
  }
  if (either[0].revents == 0) {
    ::kill(child, SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::_Exit(::write(connection, &status, sizeof(status)) == sizeof(status) ? 0 : kFailed);
}

int serve(const std::string& path) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::string unready = path + ".unready"; // the name is right once connections are accepted
  sockaddr_un address{AF_UNIX, {}};
  std::strncpy(address.sun_path, unready.c_str(), sizeof(address.sun_path) - 1);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener, 64) != 0 || std::rename(unready.c_str(), path.c_str()) != 0) {
    return kFailed;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::signal(SIGCHLD, SIG_IGN); // those that wait for children are not waited for
  while (true) {
    const int connection = ::accept(listener, nullptr, nullptr);
    if (connection < 0 || ::fork() != 0) {
      ::close(connection);
      continue;
    }
    std::signal(SIGCHLD, SIG_DFL);
    ::prctl(PR_SET_PDEATHSIG, 0);
    auto* request = new Request; // never deleted: libraries read the environment until the program has ended
    if (!receive(connection, *request)) {
      std::_Exit(kFailed);
    }
    const pid_t child = ::fork();
    if (child == 0) {
      return run_program(*request);
    }
    wait_for(child, connection);
  }
}

int serve_or_run(int argc, char** argv, char** environment) {
  const char* path = std::getenv("DISTILL_FORK_SERVER");
  return path != nullptr ? serve(path) : program(argc, argv, environment);
}

} // namespace

// In place of the C library's function, which the program's first instructions call.
extern "C" int __libc_start_main(
    Main* main, int argc, char** argv, void (*init)(), void (*fini)(), void (*rtld_fini)(), void* stack_end) {
  program = main;
  using Start = int(Main*, int, char**, void (*)(), void (*)(), void (*)(), void*);
  return next<Start>("__libc_start_main")(serve_or_run, argc, argv, init, fini, rtld_fini, stack_end);
}

// What std::ifstream opens a file with.
extern "C" FILE* fopen64(const char* path, const char* mode) {
  std::string opened = path;
  if (command_line >= 0 && opened == kCommandLine) {
    opened = "/proc/self/fd/" + std::to_string(command_line);
  }
  return next<FILE*(const char*, const char*)>("fopen64")(opened.c_str(), mode);
}
