#include "trainer/tools/replay.h"

#include "trainer/checkpoint/folder.h"
#include "trainer/config/run_length.h"

namespace distill::trainer {

absl::StatusOr<Replay> plan_replay(const config::Config& config, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_directory(config.run.dir, error)) {
    return absl::NotFoundError(absl::StrCat("run.dir: expected the folder of a run, found none at ", config.run.dir));
  }
  const auto checkpoints = checkpoint::complete_checkpoints(config.run.dir);
  const int64_t newest = checkpoints.empty() ? 0 : checkpoints.rbegin()->first;
  // If the run's length is train.epochs, the data decide how many steps there are, and the trainer compares once it has
  // opened them.
  const std::optional<int64_t> steps = config::known_steps(config);
  const int64_t last = std::max(steps.value_or(step), newest);
  if (step < 1 || step > last) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--step: expected a step of the run, ", steps ? absl::StrCat("1 to ", last) : "at least 1", ", found ", step));
  }
  Replay replay{config, {}};
  if (step <= newest) {
    const auto index = checkpoint::read_index(checkpoints.rbegin()->second.string());
    if (!index.ok()) {
      return index.status();
    }
    for (const checkpoint::DataStage& stage : index->state.data_stages) {
      if (stage.step < step) { // the step was made in this stage, or in a later one
        replay.config.data.seq_len = stage.seq_len;
        replay.config.data.packing = stage.packing;
        if (stage.teacher_seq_len > 0) {
          replay.config.data.teacher_seq_len = stage.teacher_seq_len;
        }
      }
    }
  }
  replay.config.run.dir = absl::StrCat(config.run.dir, "/replay-", step);
  replay.config.run.tensorboard = false; // a viewer of the run would show the replay as another run
  replay.config.checkpoint.every = 0;
  replay.config.checkpoint.at_end = false;
  replay.config.eval.every = 0;
  replay.config.eval.at_start = false;
  replay.config.eval.samples = 0;
  replay.start.mode = StartMode::kOverwrite;
  replay.start.parent_run = config.run.dir;
  replay.start.last_step = step;
  replay.start.show_samples = true;
  const auto after = checkpoints.lower_bound(step); // the checkpoint of the step itself is saved after it
  if (after != checkpoints.begin()) {
    replay.start.resume_from = std::prev(after)->second.string();
  }
  return replay;
}

} // namespace distill::trainer
