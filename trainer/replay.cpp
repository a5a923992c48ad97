#include "trainer/replay.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "trainer/checkpoint/folder.h"
#include "trainer/config/rules.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A step's record in metrics.jsonl.
absl::StatusOr<Json> recorded_step(const std::string& run_dir, int64_t step) {
  const std::string path = run_dir + "/metrics.jsonl";
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && !json.contains("eval") && json.contains("step") && json["step"] == step) {
      return json;
    }
  }
  return absl::NotFoundError(absl::StrCat(path, ": holds no step ", step));
}

// Names whose values depend on the machine and the moment.
bool is_time(const std::string& name) {
  constexpr const char* kTimes[] = {"seconds",           "phase_seconds", "tokens_per_second",
                                    "peak_memory_bytes", "mfu_causal",    "mfu_full"};
  return std::find(std::begin(kTimes), std::end(kTimes), name) != std::end(kTimes);
}

} // namespace

absl::StatusOr<Replay> plan_replay(const config::Config& config, int64_t step) {
  std::error_code error;
  if (!fs::is_directory(config.run.dir, error)) {
    return absl::NotFoundError(absl::StrCat("run.dir: expected the folder of a run, found none at ", config.run.dir));
  }
  if (step < 1 || step > config::total_steps(config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--step: expected a step of the run, 1 to ", config::total_steps(config), ", found ", step));
  }
  Replay replay{config, {}};
  replay.config.run.dir = absl::StrCat(config.run.dir, "/replay-", step);
  replay.config.checkpoint.every = 0;
  replay.config.checkpoint.at_end = false;
  replay.config.eval.every = 0;
  replay.config.eval.at_start = false;
  replay.start.mode = StartMode::kOverwrite;
  replay.start.last_step = step;
  replay.start.show_samples = true;
  const auto checkpoints = checkpoint::complete_checkpoints(config.run.dir);
  const auto after = checkpoints.lower_bound(step); // a checkpoint of the step itself comes after it
  if (after != checkpoints.begin()) {
    replay.start.resume_from = std::prev(after)->second.string();
  }
  return replay;
}

absl::StatusOr<std::string> compare_replay(const std::string& run_dir, const std::string& replay_dir, int64_t step) {
  const auto recorded = recorded_step(run_dir, step);
  if (!recorded.ok()) {
    return recorded.status();
  }
  const auto replayed = recorded_step(replay_dir, step);
  if (!replayed.ok()) {
    return replayed.status();
  }
  std::string text;
  for (const auto& [name, value] : recorded->items()) {
    const Json again = replayed->value(name, Json());
    if (!is_time(name) && value != again) {
      absl::StrAppend(&text, "  ", name, ": recorded ", value.dump(), ", replayed ", again.dump(), "\n");
    }
  }
  return text.empty() ? absl::StrCat("step ", step, ": the replay equals what was recorded, bit for bit\n")
                      : absl::StrCat("step ", step, ": the replay differs from what was recorded:\n", text);
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
