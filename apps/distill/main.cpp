#include <c10/util/Exception.h>

#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/config/help.h"

namespace distill::cli {

namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

int run(int argc, const char* const* argv) {
  const CommandLine line = parse_command_line(argc, argv);
  if (!line.command) {
    return line.exit_code;
  }
  return std::visit(
      Overloaded{
          [](const TrainCommand& command) { return run_train(command); },
          [](const EvalCommand& command) { return run_eval(command); },
          [](const InspectCommand& command) { return run_inspect(command); },
          [](const VerifyCommand& command) { return run_verify(command); },
          [](const ExportCommand& command) { return run_export(command); },
          [](const ReplayCommand& command) { return run_replay(command); },
          [](const PlanCommand& command) { return run_plan(command); },
          [](const ProfileMemoryCommand& command) { return run_profile_memory(command); },
          [](const HelpConfigCommand&) {
            std::fputs(config::help_text().c_str(), stdout);
            return static_cast<int>(kSuccess);
          }},
      *line.command);
}

} // namespace

} // namespace distill::cli

// The boundary that exceptions travel to.
int main(int argc, char** argv) {
  try {
    return distill::cli::run(argc, argv);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "distill: error: %s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "distill: error: %s\n", error.what());
  }
  return distill::cli::kRuntimeFailure;
}
