#include <cstdio>

#include "apps/distill/commands.h"
#include "trainer/config/help.h"
#include "trainer/device/libtorch_messages.h"
#include "trainer/launch/end_process.h"
#include "trainer/launch/exit_code.h"
#include "trainer/launch/standard_streams.h"
#include "trainer/launch/supervised_process.h"
#include "trainer/metrics/log.h"

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
          [](const CaptureCommand& capture) { return run_capture(capture); },
          [](const EvalCommand& eval) { return run_eval(eval); },
          [](const InspectCommand& inspect) { return run_inspect(inspect); },
          [](const VerifyCommand& verify) { return run_verify(verify); },
          [](const ExportCommand& exported) { return run_export(exported); },
          [](const ReplayCommand& replay) { return run_replay(replay); },
          [](const PlanCommand& plan) { return run_plan(plan); },
          [](const ProfileMemoryCommand& profile) { return run_profile_memory(profile); },
          [](const ReportCommand& report) { return run_report(report); },
          [](const QuantizeCommand& quantize) { return run_quantize(quantize); },
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

// Tells whether the command exists for what it prints to standard output. A training run prints its progress there,
// which log.txt and metrics.jsonl have, too: the run does not end when nobody reads it any more.
bool prints_a_result(const CommandLine& line) {
  const TrainCommand* train = line.command ? std::get_if<TrainCommand>(&*line.command) : nullptr;
  return train == nullptr || train->dry_run;
}

// The exit code of a command that ended with `code`: a result that could not be printed is a failure.
int check_output(int code) {
  const absl::Status status = launch::flush_standard_output();
  if (status.ok()) {
    return code;
  }
  if (!absl::IsCancelled(status)) {
    std::fprintf(stderr, "distill: error: %s\n", std::string(status.message()).c_str());
  }
  return code != launch::kSuccess ? code : launch::kRuntimeFailure;
}

int run_command(const CommandLine& line) {
  if (!line.command) {
    return line.exit_code;
  }
  const absl::StatusOr<int> code = run(*line.command);
  if (!code.ok()) {
    print_error(std::string(code.status().message()).c_str());
  }
  return code.ok() ? *code : launch::exit_code(code.status());
}

int run(int argc, const char* const* argv) {
  const CommandLine line = parse_command_line(argc, argv);
  const int code = run_command(line);
  return prints_a_result(line) ? check_output(code) : code;
}

} // namespace

} // namespace distill::cli

// All exceptions end here.
int main(int argc, char** argv) {
  if (const std::optional<int> code = distill::launch::run_supervisor(argc, argv)) {
    distill::launch::end_process(*code);
  }
  distill::launch::prepare_standard_streams();
  distill::device::prepare_libtorch_messages(distill::metrics::log_warning);
  int code = distill::launch::kRuntimeFailure;
  try {
    code = distill::cli::run(argc, argv);
  } catch (const std::exception& error) {
    const std::string text = distill::device::error_text(error);
    distill::metrics::write_trace(text, distill::device::newest_trace());
    distill::cli::print_error(text.c_str());
  }
  distill::launch::end_process(code);
}
