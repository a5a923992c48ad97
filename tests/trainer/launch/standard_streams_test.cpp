#include "trainer/launch/standard_streams.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace distill::launch {
namespace {

bool is_null_device(int descriptor) {
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  return ::readlink(link.c_str(), target, sizeof(target) - 1) > 0 && std::string(target) == "/dev/null";
}

TEST(StandardStreams, ClosedDescriptorsBecomeTheNullDevice) {
  for (const int closed : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_EXIT(
        {
          ::close(closed);
          prepare_standard_streams();
          const int next = ::open("/dev/zero", O_RDONLY);
          std::_Exit(is_null_device(closed) && next > STDERR_FILENO ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
  EXPECT_EXIT(
      {
        for (int descriptor = 0; descriptor <= STDERR_FILENO; ++descriptor) {
          ::close(descriptor);
        }
        prepare_standard_streams();
        std::_Exit(is_null_device(0) && is_null_device(1) && is_null_device(2) ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StandardStreams, APipeWithoutAReaderIsAnErrorOfTheWrite) {
  EXPECT_EXIT(
      {
        prepare_standard_streams();
        int ends[2];
        if (::pipe(ends) != 0) {
          std::_Exit(2);
        }
        ::close(ends[0]);
        std::_Exit(::write(ends[1], "x", 1) == -1 && errno == EPIPE ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StandardStreams, AFileAtItsSizeLimitIsAnErrorOfTheWrite) {
  const std::string path = testing::TempDir() + "standard_streams_test_limit";
  EXPECT_EXIT(
      {
        prepare_standard_streams();
        rlimit limit{};
        limit.rlim_cur = limit.rlim_max = 1;
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
        const bool first = ::write(file, "x", 1) == 1;
        std::_Exit(first && ::write(file, "y", 1) == -1 && errno == EFBIG ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// The signals that a program ignores when this process has started it, as a bit mask.
uint64_t ignored_by_a_child() {
  uint64_t mask = ~0UL;
  FILE* child = ::popen("grep SigIgn /proc/self/status", "r");
  if (child == nullptr || std::fscanf(child, "SigIgn: %lx", &mask) != 1) {
    std::_Exit(2);
  }
  ::pclose(child);
  return mask;
}

TEST(StandardStreams, ProgramsThatAreStartedDoNotIgnoreTheSignals) {
  EXPECT_EXIT(
      {
        prepare_standard_streams();
        std::_Exit((ignored_by_a_child() & (1UL << (SIGPIPE - 1) | 1UL << (SIGXFSZ - 1))) == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

int flushed_to(const char* path) {
  prepare_standard_streams();
  ::dup2(::open(path, O_WRONLY), STDOUT_FILENO);
  std::fputs(std::string(100000, 'x').c_str(), stdout); // more than a buffer
  const absl::Status status = flush_standard_output();
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return static_cast<int>(status.code());
}

TEST(StandardStreams, OutputThatCannotBeWrittenIsAnError) {
  EXPECT_EXIT(std::_Exit(flushed_to("/dev/null")), testing::ExitedWithCode(0), "^\n$");
  EXPECT_EXIT(
      std::_Exit(flushed_to("/dev/full")), testing::ExitedWithCode(static_cast<int>(absl::StatusCode::kInternal)),
      "standard output: cannot write: No space left on device");
  EXPECT_EXIT(
      {
        ::close(STDOUT_FILENO);
        prepare_standard_streams();
        std::_Exit(static_cast<int>(flush_standard_output().code()));
      },
      testing::ExitedWithCode(static_cast<int>(absl::StatusCode::kInternal)), "");
}

TEST(StandardStreams, AReaderThatHasGoneIsToldApart) {
  EXPECT_EXIT(
      {
        prepare_standard_streams();
        int ends[2];
        if (::pipe(ends) != 0) {
          std::_Exit(99);
        }
        ::dup2(ends[1], STDOUT_FILENO);
        ::close(ends[0]);
        std::puts("x");
        std::_Exit(static_cast<int>(flush_standard_output().code()));
      },
      testing::ExitedWithCode(static_cast<int>(absl::StatusCode::kCancelled)), "");
}

} // namespace
} // namespace distill::launch
