#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/config/load.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/spawn.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/tools/calibrate_machine.h"

namespace distill::cli {
namespace {

// Measures this machine, on several ranks where they are asked for or visible.
int calibrate(const PlanCommand& command, const config::Config& config) {
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return fail(ranks.status());
  }
  const int64_t count = command.ranks > 0 ? command.ranks : trainer::ranks_to_start(config, *ranks);
  if (ranks->launched() == 0 && count > 1) {
    const absl::StatusOr<int> code = launch::spawn_ranks({.processes = count});
    return code.ok() ? *code : fail(code.status());
  }
  const auto report = trainer::calibrate_machine(config, *ranks, command.calibrate);
  if (!report.ok()) {
    return fail(report.status());
  }
  if (ranks->rank == 0) {
    std::fputs(report->c_str(), stdout);
  }
  return kSuccess;
}

} // namespace

int run_plan(const PlanCommand& command) {
  config::Config config;
  if (!command.config.empty()) {
    const config::LoadResult loaded = config::load(command.config, command.overrides, config::Purpose::kPlan);
    if (!loaded.problems.empty()) {
      return fail(absl::InvalidArgumentError(config::report(loaded.problems)));
    }
    config = loaded.config;
  }
  if (!command.calibrate.empty()) {
    return calibrate(command, config);
  }
  int64_t ranks = command.ranks;
  if (ranks == 0) {
    const auto here = launch::detect_ranks(launch::process_environ());
    if (!here.ok()) {
      return fail(here.status());
    }
    ranks = std::max(here->world_size, trainer::ranks_to_start(config, *here));
  }
  if (command.longest) {
    const auto longest = trainer::longest_sequence(config, ranks, command.ranks_per_node);
    if (!longest.ok()) {
      return fail(longest.status());
    }
    if (*longest == 0) {
      return fail(absl::FailedPreconditionError("--longest: not even 1024 tokens fit; `distill plan` says what would"));
    }
    config.data.seq_len = *longest;
    std::printf(
        command.json ? "{\"longest_seq_len\": %ld, \"plan\": " : "longest sequence that fits: %ld tokens\n",
        static_cast<long>(*longest));
  }
  const auto plan = trainer::plan_on_paper(config, ranks, std::min(ranks, command.ranks_per_node));
  if (!plan.ok()) {
    return fail(plan.status());
  }
  std::fputs((command.json ? plan->json() : plan->text()).c_str(), stdout);
  std::fputs(command.json ? (command.longest ? "}\n" : "\n") : "", stdout);
  return kSuccess;
}

} // namespace distill::cli
