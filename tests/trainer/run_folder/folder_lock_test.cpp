#include "trainer/run_folder/folder_lock.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <thread>

#include "tests/trainer/hf/temporary_folder.h"
#include "tests/trainer/run_folder/lock_process.h"
#include "trainer/run_folder/lock_holder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Milliseconds = std::chrono::milliseconds;
using Held = std::unique_ptr<FolderLock>;

class FolderLockTest : public hf::FolderTest {
 protected:
  absl::StatusOr<Held> take() const {
    return FolderLock::take(root(), options_);
  }
  // Takes the lock for as long as the process lives.
  bool take_for_ever() const {
    auto* held = new absl::StatusOr<Held>(take());
    return held->ok();
  }
  std::string lock_text() const {
    return read(kLockFile);
  }
  static std::string other_host() {
    LockHolder holder = LockHolder::this_process();
    holder.host = "node7";
    holder.pid = 4711;
    return holder.json();
  }

  LockOptions options_{.busy = Milliseconds(100)};
};

TEST_F(FolderLockTest, ASecondTakeIsRefusedAndNamesTheHolder) {
  const auto held = take().value();
  EXPECT_EQ(held->note(), "");
  const auto holder = LockHolder::parse(lock_text());
  ASSERT_TRUE(holder.has_value()) << lock_text();
  const std::string named =
      "in use by process " + std::to_string(::getpid()) + " on host " + holder->host + " since " + holder->since;
  const auto second = take();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(named));
  EXPECT_THAT(std::string(FolderLock::check_free(root(), options_).message()), HasSubstr(named));
  EXPECT_EQ(lock_text(), holder->json());
  LockProcess other([&] { return absl::IsFailedPrecondition(take().status()); });
  EXPECT_TRUE(other.result());
}

TEST_F(FolderLockTest, ARegularEndLeavesNothing) {
  ASSERT_TRUE(take().ok());
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_TRUE(FolderLock::check_free(root(), options_).ok());
  const auto again = take().value();
  EXPECT_EQ(again->note(), "");
}

TEST_F(FolderLockTest, ALockDiesWithItsHolderAndTheNextOneSaysWhoThatWas) {
  LockProcess other([&] { return take_for_ever(); });
  ASSERT_TRUE(other.result());
  EXPECT_THAT(std::string(take().status().message()), HasSubstr("process " + std::to_string(other.pid())));
  const std::string pid = std::to_string(other.pid());
  const auto holder = LockHolder::parse(lock_text());
  other.kill();
  EXPECT_TRUE(FolderLock::check_free(root(), options_).ok());
  const auto held = take().value();
  EXPECT_THAT(
      held->note(),
      AllOf(
          HasSubstr("process " + pid + " on host " + holder->host + " since " + holder->since),
          HasSubstr("taken over")));
  EXPECT_EQ(LockHolder::parse(lock_text())->pid, ::getpid());
  EXPECT_THAT(names(), ElementsAre(kLockFile));
}

TEST_F(FolderLockTest, AProgramThatTheHolderHasStartedDoesNotHoldTheLock) {
  int shared[2];
  ASSERT_EQ(::pipe(shared), 0);
  LockProcess other([&] {
    const bool taken = take_for_ever();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::execlp("sleep", "sleep", "60", nullptr);
      ::_exit(1);
    }
    (void)!::write(shared[1], &pid, sizeof(pid));
    std::this_thread::sleep_for(Milliseconds(200)); // for the exec
    return taken;
  });
  pid_t pid = -1;
  ASSERT_EQ(::read(shared[0], &pid, sizeof(pid)), static_cast<ssize_t>(sizeof(pid)));
  ASSERT_TRUE(other.result());
  other.kill();
  EXPECT_EQ(::kill(pid, 0), 0) << "it runs on";
  EXPECT_TRUE(take().ok());
  ::kill(pid, SIGKILL);
  ::close(shared[0]);
  ::close(shared[1]);
}

TEST_F(FolderLockTest, OneOfManyThatStartAtOnceWins) {
  for (int round = 0; round < 10; ++round) {
    if (round % 2 == 1) { // left by a process that is dead
      LockProcess dead([&] { return take_for_ever(); });
      ASSERT_TRUE(dead.result());
    }
    std::vector<std::unique_ptr<LockProcess>> processes;
    for (int i = 0; i < 6; ++i) {
      processes.push_back(std::make_unique<LockProcess>([&] { return take_for_ever(); }));
    }
    int winners = 0;
    pid_t winner = -1;
    for (const auto& process : processes) {
      if (process->result()) {
        winners += 1;
        winner = process->pid();
      }
    }
    ASSERT_EQ(winners, 1) << "round " << round;
    EXPECT_EQ(LockHolder::parse(lock_text())->pid, winner);
    processes.clear();
    fs::remove(path(kLockFile));
    EXPECT_THAT(names(), IsEmpty());
  }
}

TEST_F(FolderLockTest, AFileWithoutAHolderIsTakenOver) {
  for (const char* text : {"", "{\"host\": \"no", "garbage"}) {
    write(kLockFile, text);
    const auto held = take().value();
    EXPECT_EQ(LockHolder::parse(lock_text())->pid, ::getpid());
  }
}

TEST_F(FolderLockTest, WhatIsNoRegularFileIsRefused) {
  write("precious", "content");
  fs::create_symlink(path("precious"), path(kLockFile));
  EXPECT_THAT(std::string(take().status().message()), HasSubstr(path(kLockFile)));
  EXPECT_EQ(read("precious"), "content");
  fs::remove(path(kLockFile));
  ASSERT_EQ(::mkfifo(path(kLockFile).c_str(), 0600), 0);
  EXPECT_THAT(std::string(take().status().message()), HasSubstr("expected a regular file"));
  EXPECT_TRUE(absl::IsNotFound(FolderLock::take(path("nowhere"), options_).status()));
}

TEST_F(FolderLockTest, SaysWhoHoldsIt) {
  EXPECT_EQ(FolderLock::holder(root()), std::nullopt);
  const auto held = take().value();
  EXPECT_THAT(*FolderLock::holder(root()), HasSubstr("process " + std::to_string(::getpid())));
}

TEST_F(FolderLockTest, AHolderOfAnotherHostThatIsNotSeenIsNamedInAWarning) {
  write(kLockFile, other_host());
  const auto held = take().value();
  EXPECT_THAT(
      held->note(), AllOf(HasSubstr("process 4711 on host node7"), HasSubstr("If that process still runs, two jobs")));
}

TEST_F(FolderLockTest, AFileSystemWithoutLocksIsSaidToHaveNone) {
  options_.supported = false;
  auto held = take().value();
  EXPECT_THAT(held->note(), HasSubstr("has no locks, so that a second job in this folder is not refused"));
  EXPECT_EQ(LockHolder::parse(lock_text())->pid, ::getpid());
  EXPECT_TRUE(FolderLock::check_free(root(), options_).ok());
  const auto second = take().value();
  EXPECT_THAT(
      second->note(),
      AllOf(HasSubstr("process " + std::to_string(::getpid())), HasSubstr("If that process still runs, two jobs")));
  held.reset();
  EXPECT_THAT(names(), IsEmpty());
}

} // namespace
} // namespace distill::trainer
