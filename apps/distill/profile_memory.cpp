#include <absl/strings/str_cat.h>

#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/ranked_run.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"
#include "trainer/launch/exit_code.h"
#include "trainer/tools/profile_memory.h"
#include "trainer/tools/profile_sweep.h"

namespace distill::cli {

absl::StatusOr<int> run_profile_memory(const ProfileMemoryCommand& command) {
  RETURN_IF_ERROR(base::check_output_folder("--out", command.out));
  std::vector<std::string> overrides = command.overrides;
  overrides.push_back(absl::StrCat("run.dir=", command.out, "/run")); // the profile does not touch the run's own folder
  ASSIGN_OR_RETURN(const RankedRun run, load_ranked_run(command.config, overrides, config::Purpose::kTrain));
  if (!command.sweep.empty()) {
    ASSIGN_OR_RETURN(
        const trainer::SweepReport report,
        trainer::profile_sweep(command.config, command.overrides, command.sweep, {command.steps, command.out}));
    std::fputs((command.json ? report.json : report.table).c_str(), stdout);
    return launch::kSuccess;
  }
  ASSIGN_OR_RETURN(const std::optional<int> code, start_ranks(run));
  if (code) {
    return *code;
  }
  ASSIGN_OR_RETURN(
      const std::string report, trainer::profile_memory(run.config, run.ranks, {command.steps, command.out}));
  if (run.ranks.rank == 0) {
    std::fputs((command.json ? report + "\n" : trainer::profile_text(report)).c_str(), stdout);
    if (!command.json) {
      std::printf(
          "%s: report.json, timeline.json (scripts/plot_memory.py draws it), snapshot.pickle (opens in "
          "https://pytorch.org/memory_viz)\n",
          command.out.c_str());
    }
  }
  return launch::kSuccess;
}

} // namespace distill::cli
