#include <c10/util/Exception.h>

#include <cstdio>

#include "apps/distill/commands.h"
#include "trainer/config/help.h"
#include "trainer/launch/exit_code.h"

namespace distill::cli {

namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};

absl::StatusOr<int> run(const Command& command) {
  using Result = absl::StatusOr<int>;
  return std::visit(
      Overloaded{
          [](const TrainCommand& train) { return run_train(train); },
          [](const EvalCommand& eval) { return run_eval(eval); },
          [](const InspectCommand& inspect) { return run_inspect(inspect); },
          [](const VerifyCommand& verify) { return run_verify(verify); },
          [](const ExportCommand& exported) { return run_export(exported); },
          [](const ReplayCommand& replay) { return run_replay(replay); },
          [](const PlanCommand& plan) { return run_plan(plan); },
          [](const ProfileMemoryCommand& profile) { return run_profile_memory(profile); },
          [](const HelpConfigCommand&) -> Result {
            std::fputs(config::help_text().c_str(), stdout);
            return launch::kSuccess;
          }},
      command);
}

void print_error(const char* message) {
  std::fflush(stdout);
  std::fprintf(stderr, "distill: error: %s\n", message);
}

int run(int argc, const char* const* argv) {
  const CommandLine line = parse_command_line(argc, argv);
  if (!line.command) {
    return line.exit_code;
  }
  const absl::StatusOr<int> code = run(*line.command);
  if (!code.ok()) {
    print_error(std::string(code.status().message()).c_str());
  }
  return code.ok() ? *code : launch::exit_code(code.status());
}

} // namespace

} // namespace distill::cli

// All exceptions end here.
int main(int argc, char** argv) {
  try {
    return distill::cli::run(argc, argv);
  } catch (const c10::Error& error) {
    distill::cli::print_error(error.what_without_backtrace());
  } catch (const std::exception& error) {
    distill::cli::print_error(error.what());
  }
  return distill::launch::kRuntimeFailure;
}
