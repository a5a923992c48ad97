#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/distill/commands.h"
#include "apps/distill/ranked_run.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/tools/calibrate_machine.h"
#include "trainer/tools/capture_plan.h"

namespace distill::cli {

namespace {

// Measures this machine on the ranks that --ranks or the configuration asks for.
absl::StatusOr<int> calibrate(const PlanCommand& command, const RankedRun& run) {
  RETURN_IF_ERROR(base::check_output_file("--calibrate", command.calibrate));
  const int64_t count = command.ranks > 0 ? command.ranks : trainer::ranks_to_start(run.config, run.ranks);
  ASSIGN_OR_RETURN(const std::optional<int> code, start_ranks(run.ranks, count));
  if (code) {
    return *code;
  }
  ASSIGN_OR_RETURN(const std::string report, trainer::calibrate_machine(run.config, run.ranks, command.calibrate));
  if (run.ranks.rank == 0) {
    std::fputs(report.c_str(), stdout);
  }
  return launch::kSuccess;
}

// The configuration with the largest data.seq_len that fits.
absl::StatusOr<config::Config> with_longest_sequence(config::Config config, int64_t ranks, const PlanCommand& command) {
  ASSIGN_OR_RETURN(config.data.seq_len, trainer::longest_sequence(config, ranks, command.ranks_per_node));
  if (config.data.seq_len == 0) {
    return absl::OutOfRangeError("--longest: not even 1024 tokens fit; `distill plan` says what would");
  }
  return config;
}

// The end of the plan: what `distill capture` takes with the same configuration, or why it cannot be planned.
std::string capture_text(
    const config::Config& config, const absl::StatusOr<std::optional<trainer::CapturePlan>>& plan) {
  if (!plan.ok()) {
    return absl::StrCat("distill capture\n  cannot be planned: ", std::string(plan.status().message()), "\n");
  }
  if (!*plan) {
    return "";
  }
  std::string text = "distill capture\n";
  for (const std::string& line : (*plan)->lines(config.teacher.cache)) {
    absl::StrAppend(&text, "  ", line, "\n");
  }
  const absl::Status fits = (*plan)->check_fits();
  return fits.ok() ? text : absl::StrCat(text, "  ", std::string(fits.message()), "\n");
}

std::string with_capture(
    const config::Config& config, const plan::Plan& plan,
    const absl::StatusOr<std::optional<trainer::CapturePlan>>& capture) {
  auto json = nlohmann::ordered_json::parse(plan.json());
  if (!capture.ok()) {
    json["capture"] = {{"error", std::string(capture.status().message())}};
  } else if (*capture) {
    json["capture"] = nlohmann::ordered_json::parse((*capture)->json(config.teacher.cache));
  }
  return json.dump(1);
}

} // namespace

absl::StatusOr<int> run_plan(const PlanCommand& command) {
  RankedRun run;
  if (command.config.empty()) { // --calibrate needs none
    ASSIGN_OR_RETURN(run.ranks, launch::detect_ranks(launch::process_environ()));
  } else {
    ASSIGN_OR_RETURN(run, load_ranked_run(command.config, command.overrides, config::Purpose::kPlan));
  }
  if (!command.calibrate.empty()) {
    return calibrate(command, run);
  }
  const int64_t ranks = command.ranks > 0
      ? command.ranks
      : std::max(run.ranks.world_size, trainer::ranks_to_start(run.config, run.ranks));
  if (command.longest) {
    ASSIGN_OR_RETURN(run.config, with_longest_sequence(run.config, ranks, command));
    std::printf(
        command.json ? "{\"longest_seq_len\": %ld, \"plan\": " : "longest sequence that fits: %ld tokens\n",
        static_cast<long>(run.config.data.seq_len));
  }
  ASSIGN_OR_RETURN(
      const plan::Plan plan, trainer::plan_on_paper(run.config, ranks, std::min(ranks, command.ranks_per_node)));
  const auto capture = trainer::capture_on_paper(run.config, ranks, std::min(ranks, command.ranks_per_node));
  const std::string text = command.json ? with_capture(run.config, plan, capture)
                                        : absl::StrCat(plan.text(), capture_text(run.config, capture));
  std::fputs(text.c_str(), stdout);
  std::fputs(command.json ? (command.longest ? "}\n" : "\n") : "", stdout);
  return plan.fits() ? launch::kSuccess : launch::kDoesNotFit;
}

} // namespace distill::cli
