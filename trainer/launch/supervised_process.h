#pragma once

#include <absl/status/statusor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace distill::launch {

// The first argument with which this program becomes the supervisor of a command (run_supervisor()).
inline constexpr const char* kSuperviseArgument = "--supervise-command";

// A shell command in processes of its own, of which none outlives this object or this process, however it ends. The
// command runs below a supervisor, which is this program once more (kSuperviseArgument). A pipe tells the supervisor
// when this process is gone, also after SIGKILL; it is the reaper of all descendants, so that it finds and kills those
// that have left the command's process group, too. Ctrl-C on a terminal does not reach the command.
class SupervisedProcess {
 public:
  // Appends what the command prints to `output_file`. Internal: a process or the file cannot be made.
  static absl::StatusOr<std::unique_ptr<SupervisedProcess>> start(
      const std::string& command, const std::string& output_file);
  ~SupervisedProcess(); // end()
  SupervisedProcess(const SupervisedProcess&) = delete;
  SupervisedProcess& operator=(const SupervisedProcess&) = delete;

  // The exit code of the command, 128 + the signal that killed it, once no process of it is left. nullopt: it runs.
  std::optional<int> poll();
  // Ends the command: SIGTERM, and SIGKILL after kGrace. Returns when none of its processes is left.
  void end();

  static constexpr std::chrono::seconds kGrace{3};

 private:
  SupervisedProcess(int supervisor, int pipe) : supervisor_(supervisor), pipe_(pipe) {}

  int supervisor_; // process id; -1: it has been reaped
  int pipe_; // closed: the supervisor ends the command
  std::optional<int> exit_code_;
};

// "exit code 3", or "signal 9 (Killed)" for a code of 128 + 9.
std::string exit_text(int code);

// The last lines of a file, at most `lines` of them and a few KiB, each after "\n  "; "" where it is empty.
std::string last_lines(const std::string& file, int lines);

// Runs the supervisor, where the program's arguments ask for it, and returns its exit code. nullopt: they do not.
// Call it first in main().
std::optional<int> run_supervisor(int argc, char** argv);

} // namespace distill::launch
