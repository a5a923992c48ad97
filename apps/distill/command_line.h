#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/tools/evaluation_config.h"
#include "trainer/tools/inspect.h"
#include "trainer/tools/quantize.h"
#include "trainer/tools/verify_cache.h"

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
  trainer::EvaluationRequest request;
  bool json = false;
};

struct InspectCommand {
  trainer::InspectRequest request;
};

struct CaptureCommand {
  std::string config;
  std::vector<std::string> overrides;
  std::string teacher; // of several, the name of the one
  bool dry_run = false;
};

struct VerifyCommand {
  std::string path; // checkpoint, model folder, teacher's cache or run folder; empty: cache.cache
  trainer::CacheCheckRequest cache;
};

struct ExportCommand {
  std::string checkpoint; // its folder, or a run folder for the newest one
  std::string out;
  config::StoredDtype dtype = config::StoredDtype::kAuto;
  std::string model; // empty: the run's student.path
  bool merge = false;
};

struct ReplayCommand {
  std::string config;
  std::vector<std::string> overrides;
  int64_t step = 0;
};

struct PlanCommand {
  std::string config;
  std::vector<std::string> overrides;
  int64_t ranks = 0; // 0: the ranks that would start here
  int64_t ranks_per_node = 8;
  bool json = false;
  bool longest = false;
  std::string calibrate; // file to write; empty: plan
};

struct ProfileMemoryCommand {
  std::string config;
  std::vector<std::string> overrides;
  int64_t steps = 3;
  std::string sweep; // "section.key=VALUE,VALUE"; empty: one run
  std::string out = "memory-profile"; // folder
  bool json = false;
};

struct ReportCommand {
  std::vector<std::string> runs; // folders
  std::string output; // empty: report.html, in the run folder where there is one run
};

struct QuantizeCommand {
  trainer::QuantizeRequest request;
  bool json = false;
};

struct HelpConfigCommand {};

using Command = std::variant<
    TrainCommand, CaptureCommand, EvalCommand, InspectCommand, VerifyCommand, ExportCommand, ReplayCommand, PlanCommand,
    ProfileMemoryCommand, QuantizeCommand, ReportCommand, HelpConfigCommand>;

struct CommandLine {
  std::optional<Command> command; // nullopt: help, version or an error was printed; exit with exit_code
  int exit_code = 0;
};

CommandLine parse_command_line(int argc, const char* const* argv);

} // namespace distill::cli
