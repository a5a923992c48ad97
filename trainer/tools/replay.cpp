#include "trainer/tools/replay.h"

#include "trainer/checkpoint/folder.h"
#include "trainer/config/rules.h"

namespace distill::trainer {

absl::StatusOr<Replay> plan_replay(const config::Config& config, int64_t step) {
  std::error_code error;
  if (!std::filesystem::is_directory(config.run.dir, error)) {
    return absl::NotFoundError(absl::StrCat("run.dir: expected the folder of a run, found none at ", config.run.dir));
  }
  const auto checkpoints = checkpoint::complete_checkpoints(config.run.dir);
  const int64_t newest = checkpoints.empty() ? 0 : checkpoints.rbegin()->first;
  const int64_t last = std::max(config::total_steps(config), newest);
  if (step < 1 || step > last) {
    return absl::InvalidArgumentError(
        absl::StrCat("--step: expected a step of the run, 1 to ", last, ", found ", step));
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
      }
    }
  }
  replay.config.run.dir = absl::StrCat(config.run.dir, "/replay-", step);
  replay.config.checkpoint.every = 0;
  replay.config.checkpoint.at_end = false;
  replay.config.eval.every = 0;
  replay.config.eval.at_start = false;
  replay.start.mode = StartMode::kOverwrite;
  replay.start.last_step = step;
  replay.start.show_samples = true;
  const auto after = checkpoints.lower_bound(step); // a checkpoint of the step itself comes after it
  if (after != checkpoints.begin()) {
    replay.start.resume_from = std::prev(after)->second.string();
  }
  return replay;
}

absl::StatusOr<std::vector<std::string>> sample_losses(
    MicroStep& micro, const data::Dataset& data, int64_t first, int64_t count, const sharding::Mesh& mesh) {
  const int64_t share = count / mesh.world_size;
  at::Tensor own = at::zeros({share, 2}, at::kDouble); // tokens in the loss, mean loss
  for (int64_t i = 0; i < share; ++i) {
    const auto batch = data.batch(first + mesh.rank * share + i, 1);
    if (!batch.ok()) {
      return batch.status();
    }
    at::Tensor sums_K = micro.zero_sums();
    micro.evaluate(*batch, sums_K);
    own[i][0] = static_cast<double>(batch->valid_tokens);
    own[i][1] = sums_to_host(sums_K)[losses::kLoss] / static_cast<double>(std::max<int64_t>(1, batch->valid_tokens));
  }
  at::Tensor all = own;
  if (mesh.host != nullptr) {
    all = at::empty({mesh.world_size * share, 2}, at::kDouble);
    mesh.host->all_gather(all, own);
  }
  std::vector<std::string> lines;
  for (int64_t i = 0; i < all.size(0); ++i) {
    lines.push_back(absl::StrFormat(
        "sample %d: loss %.6g over %d tokens", first + i, all[i][1].item<double>(),
        static_cast<int64_t>(all[i][0].item<double>())));
  }
  return lines;
}

} // namespace distill::trainer
