#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/config/load.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/spawn.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/tools/profile_memory.h"

namespace distill::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr double kGiB = 1 << 30;

// Runs this program with these arguments, its output in a file; returns its exit code.
absl::StatusOr<int> run_self(const std::vector<std::string>& arguments, const std::string& output) {
  std::vector<char*> argv{const_cast<char*>("distill")};
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  if (pid == 0) {
    const int file = ::open(output.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execv("/proc/self/exe", argv.data());
    std::_Exit(1);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

std::string last_line(const std::string& path) {
  std::ifstream in(path);
  std::string last;
  for (std::string line; std::getline(in, line);) {
    last = line.empty() ? last : line;
  }
  return last;
}

// One row for each value: a fresh process each, so that none sees another's memory.
int sweep(const ProfileMemoryCommand& command) {
  const std::vector<std::string> parts = absl::StrSplit(command.sweep, absl::MaxSplits('=', 1));
  if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
    return fail(absl::InvalidArgumentError(
        absl::StrCat("--sweep: expected section.key=VALUE,VALUE,..., found \"", command.sweep, "\"")));
  }
  std::error_code error;
  fs::create_directories(command.out, error);
  if (error) {
    return fail(absl::InvalidArgumentError(absl::StrCat("--out: cannot create ", command.out, ": ", error.message())));
  }
  std::string table = absl::StrFormat(
      "%-28s %14s %14s %9s %12s %12s %14s %14s\n", parts[0], "predicted GiB", "measured GiB", "error", "head GiB",
      "peak phase", "pred. tok/s", "meas. tok/s");
  Json reports = Json::object();
  for (const std::string& value : std::vector<std::string>(absl::StrSplit(parts[1], ','))) {
    const std::string folder = absl::StrCat(command.out, "/", parts[0], "=", value);
    const std::string log = folder + ".log";
    std::vector<std::string> arguments{"profile-memory", "--config", command.config};
    for (const std::string& override_text : command.overrides) {
      arguments.insert(arguments.end(), {"--set", override_text});
    }
    arguments.insert(
        arguments.end(),
        {"--set", absl::StrCat(parts[0], "=", value), "--steps", absl::StrCat(command.steps), "--out", folder});
    const absl::StatusOr<int> code = run_self(arguments, log);
    if (!code.ok()) {
      return fail(code.status());
    }
    if (*code == kBadInput) {
      return fail(absl::InvalidArgumentError(
          absl::StrCat("--sweep: ", parts[0], "=", value, ": ", last_line(log), " (", log, ")")));
    }
    if (*code != kSuccess) { // out of memory, which is worth knowing too
      absl::StrAppendFormat(&table, "%-28s failed: %s (%s)\n", value, last_line(log), log);
      continue;
    }
    std::ifstream in(folder + "/report.json");
    const Json report = Json::parse(in);
    reports[value] = report;
    const Json& measured = report["measured"];
    absl::StrAppendFormat(
        &table, "%-28s %14.3f %14.3f %8.2f%% %12.3f %12s %14.0f %14.0f\n", value,
        report["plan"]["bytes"]["peak"].get<double>() / kGiB, measured["peak"].get<double>() / kGiB,
        100 * report["peak_error"].get<double>(), measured["phases"]["head"]["highest"]["head"].get<double>() / kGiB,
        measured["peak_phase"].get<std::string>(), report["plan"]["tokens_per_second"].get<double>(),
        measured["tokens_per_second"].get<double>());
  }
  std::ofstream(command.out + "/sweep.txt") << table;
  std::fputs((command.json ? reports.dump(1) + "\n" : table).c_str(), stdout);
  return kSuccess;
}

} // namespace

int run_profile_memory(const ProfileMemoryCommand& command) {
  // A run of a few steps needs neither a length nor a folder of its own.
  std::vector<std::string> overrides = command.overrides;
  overrides.push_back(absl::StrCat("run.dir=", command.out, "/run"));
  const config::LoadResult loaded = config::load(command.config, overrides, config::Purpose::kTrain);
  if (!loaded.problems.empty()) {
    return fail(absl::InvalidArgumentError(config::report(loaded.problems)));
  }
  if (!command.sweep.empty()) {
    return sweep(command);
  }
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return fail(ranks.status());
  }
  if (const int64_t count = trainer::ranks_to_start(loaded.config, *ranks); count > 1) {
    const absl::StatusOr<int> code = launch::spawn_ranks({.processes = count});
    return code.ok() ? *code : fail(code.status());
  }
  const auto report = trainer::profile_memory(loaded.config, *ranks, {.steps = command.steps, .folder = command.out});
  if (!report.ok()) {
    return fail(report.status());
  }
  if (ranks->rank == 0) {
    std::fputs((command.json ? *report + "\n" : trainer::profile_text(*report)).c_str(), stdout);
    if (!command.json) {
      std::printf(
          "%s: report.json, timeline.json (scripts/plot_memory.py draws it), snapshot.pickle (opens in "
          "https://pytorch.org/memory_viz)\n",
          command.out.c_str());
    }
  }
  return kSuccess;
}

} // namespace distill::cli
