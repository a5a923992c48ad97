#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace distill::cli {

struct TrainCommand {
  std::string config;
  std::vector<std::string> overrides; // "section.key=VALUE"
  bool resume = false;
  std::string resume_from; // a checkpoint's folder
  bool overwrite = false;
  bool dry_run = false;
};

struct EvalCommand {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

struct InspectCommand {
  std::string path;
};

struct HelpConfigCommand {};

using Command = std::variant<TrainCommand, EvalCommand, InspectCommand, HelpConfigCommand>;

struct CommandLine {
  std::optional<Command> command; // nullopt: leave with exit_code; help, version or the error was printed
  int exit_code = 0;
};

CommandLine parse_command_line(int argc, const char* const* argv);

} // namespace distill::cli
