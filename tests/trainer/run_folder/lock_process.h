#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

namespace distill::trainer {

// A process that runs `work`, says whether that returned true, and stays until it is ended or killed.
class LockProcess {
 public:
  explicit LockProcess(const std::function<bool()>& work) {
    EXPECT_EQ(::pipe(said_), 0);
    EXPECT_EQ(::pipe(hold_), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(hold_[1]);
      char byte = work() ? '1' : '0';
      (void)!::write(said_[1], &byte, 1);
      (void)!::read(hold_[0], &byte, 1); // until the parent closes its end
      ::_exit(0);
    }
    ::close(said_[1]);
    ::close(hold_[0]);
  }
  ~LockProcess() {
    kill();
    ::close(said_[0]);
    ::close(hold_[1]);
  }
  LockProcess(const LockProcess&) = delete;
  LockProcess& operator=(const LockProcess&) = delete;

  bool result() { // waits for it
    char byte = '?';
    EXPECT_EQ(::read(said_[0], &byte, 1), 1);
    return byte == '1';
  }
  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  pid_t pid() const {
    return pid_;
  }

 private:
  int said_[2] = {-1, -1}, hold_[2] = {-1, -1};
  pid_t pid_ = -1;
};

} // namespace distill::trainer
