#include "trainer/launch/supervised_process.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace distill::launch {
namespace {

using ::testing::HasSubstr;

class SupervisedProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "distill_process_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }
  std::unique_ptr<SupervisedProcess> start(const std::string& command) {
    auto process = SupervisedProcess::start(command, path("log"));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  static int wait(SupervisedProcess& process) {
    std::optional<int> code;
    while (!(code = process.poll())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return *code;
  }
  std::string text(const std::string& name) const {
    std::stringstream out;
    out << std::ifstream(path(name)).rdbuf();
    return out.str();
  }
  // Waits for a process id in a file, which the command writes.
  pid_t pid_in(const std::string& name) const {
    pid_t pid = 0;
    for (int i = 0; i < 2000 && !(std::ifstream(path(name)) >> pid); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_GT(pid, 0);
    return pid;
  }
  // Whether the process is gone within two seconds; one whose exit nobody has read counts as gone.
  static bool gone(pid_t pid) {
    for (int i = 0; i < 400; ++i) {
      std::string line;
      std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), line);
      if (line.empty() || line.find(") Z") != std::string::npos) {
        return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  // A shell command that leaves a process in a session of its own, which ignores SIGTERM and writes its id to `name`.
  std::string leaves_a_process(const std::string& name) const {
    return "setsid sh -c 'trap \"\" TERM; echo $$ > " + path(name) + "; while :; do sleep 1; done' & ";
  }

  std::filesystem::path folder_;
};

TEST_F(SupervisedProcessTest, ExitCodeAndOutputAreThoseOfTheCommand) {
  const auto process = start("echo one; echo two >&2; exit 7");
  EXPECT_EQ(wait(*process), 7);
  EXPECT_EQ(text("log"), "one\ntwo\n");
  EXPECT_EQ(exit_text(7), "exit code 7");
  EXPECT_EQ(wait(*start("kill -KILL $$")), 128 + SIGKILL);
  EXPECT_EQ(exit_text(128 + SIGKILL), "signal 9 (Killed)");
  EXPECT_EQ(wait(*start("/no/such/program")), 127);
  EXPECT_THAT(last_lines(path("log"), 2), HasSubstr("\n  two\n  sh: "));
}

TEST_F(SupervisedProcessTest, ProcessesThatTheCommandLeavesEndWithIt) {
  const auto process = start(leaves_a_process("pid") + "while ! [ -s " + path("pid") + " ]; do :; done");
  EXPECT_EQ(wait(*process), 0);
  EXPECT_TRUE(gone(pid_in("pid")));
}

TEST_F(SupervisedProcessTest, EndKillsTheCommandAndItsProcessesAlsoThoseThatIgnoreIt) {
  auto process = start(leaves_a_process("pid") + "trap '' TERM; while :; do sleep 1; done");
  const pid_t pid = pid_in("pid");
  process->end();
  EXPECT_EQ(process->poll(), 128 + SIGKILL);
  EXPECT_TRUE(gone(pid));
}

TEST_F(SupervisedProcessTest, ACommandMayCleanUpWhenItIsEnded) {
  auto process = start("trap 'echo cleaned; exit 0' TERM; echo $$ > " + path("pid") + "; while :; do sleep 0.05; done");
  pid_in("pid");
  process.reset();
  EXPECT_THAT(text("log"), HasSubstr("cleaned"));
}

TEST_F(SupervisedProcessTest, NoProcessOutlivesAProgramThatIsKilled) {
  const pid_t program = ::fork();
  if (program == 0) {
    const auto process = SupervisedProcess::start(leaves_a_process("pid") + "sleep 1000", path("log"));
    ::pause();
    ::_exit(process.ok() ? 0 : 1);
  }
  const pid_t pid = pid_in("pid");
  ::kill(program, SIGKILL);
  ::waitpid(program, nullptr, 0);
  std::this_thread::sleep_for(SupervisedProcess::kGrace);
  EXPECT_TRUE(gone(pid));
}

} // namespace
} // namespace distill::launch

// The supervisor is this program once more.
int main(int argc, char** argv) {
  if (const auto code = distill::launch::run_supervisor(argc, argv)) {
    return *code;
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
