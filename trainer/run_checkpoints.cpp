#include "trainer/run_checkpoints.h"

#include <chrono>

#include "trainer/config/dump.h"
#include "trainer/config/reader.h"
#include "trainer/device/host_slab.h"
#include "trainer/metrics/log.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

} // namespace

std::vector<std::string> describe_resumption(const checkpoint::Resumed& resumed, const config::Config& config) {
  std::vector<std::string> lines;
  if (!resumed.damaged.empty()) {
    lines.push_back("checkpoints that were damaged are set aside:" + resumed.damaged);
  }
  lines.push_back(absl::StrFormat(
      "resumed from %s after step %d (%d samples)", resumed.folder, resumed.state.step, resumed.state.samples));
  for (const std::string& folder : resumed.superseded) {
    lines.push_back("set aside, since the run goes on from an earlier step: " + folder);
  }
  lines.insert(lines.end(), resumed.data_lines.begin(), resumed.data_lines.end());
  const config::ReadResult saved = config::read(resumed.info.config, resumed.folder, {});
  if (!saved.problems.empty()) {
    return lines; // written by a version with other keys
  }
  for (const std::string& difference : config::differences(saved.config, config)) {
    lines.push_back("changed since the checkpoint: " + difference);
  }
  return lines;
}

std::string describe_no_step_left(int64_t step, int64_t total_steps) {
  return step > total_steps
      ? absl::StrFormat(
            "nothing to train: the run has %d steps and the state is of step %d; the run ends with this state "
            "(--resume-from takes an earlier checkpoint)",
            total_steps, step)
      : absl::StrFormat(
            "nothing to train: the run is complete, all its %d steps are done (to go on, raise its length)",
            total_steps);
}

RunCheckpoints::RunCheckpoints(
    const config::Config& config, checkpoint::RunIdentity identity, std::map<std::string, std::string> model_files,
    TrainingData& data, sharding::ModelShards& student, optim::AdamW& optimizer, const sharding::Mesh& mesh)
    : config_(config), data_(data), student_(student), optimizer_(optimizer), mesh_(mesh) {
  info_.identity = std::move(identity);
  info_.config = config::dump(config);
  info_.program = "distill " DISTILL_VERSION;
  info_.student_folder = absolute_path(config.student.path);
  info_.model_files = std::move(model_files);
}

absl::StatusOr<checkpoint::Resumed> RunCheckpoints::resume(
    const std::string& folder, const std::function<bool(const checkpoint::TrainState&)>& other_data_allowed) {
  const checkpoint::ResumingRun run{
      info_.identity, [this](const checkpoint::DataStage& stage) { return data_.identity(stage); }, other_data_allowed,
      info_.model_files};
  auto resumed = folder.empty() ? checkpoint::resume_newest(config_.run.dir, run, student_, optimizer_, mesh_)
                                : checkpoint::resume_from(folder, run, student_, optimizer_, mesh_);
  if (!resumed.ok()) {
    return resumed.status();
  }
  auto lines = data_.continue_from(resumed->state, resumed->folder);
  if (absl::Status status = sharding::agree(mesh_, lines.status()); !status.ok()) {
    return status;
  }
  resumed->data_lines = *std::move(lines);
  for (const auto& [key, hash] : resumed->info.model_files) {
    const auto now = info_.model_files.find(key);
    if (now != info_.model_files.end() && now->second != hash) {
      resumed->data_lines.push_back(absl::StrCat("changed since the checkpoint: the model files of ", key));
    }
  }
  auto moved = mesh_.is_main() ? checkpoint::set_aside_after(config_.run.dir, resumed->state.step)
                               : absl::StatusOr<std::vector<std::string>>(std::vector<std::string>());
  if (absl::Status status = sharding::agree(mesh_, moved.status()); !status.ok()) {
    return status;
  }
  resumed->superseded = *std::move(moved);
  // A complete checkpoint of this step is there, and is not written over by another one of the same state.
  std::error_code error;
  const fs::path own = checkpoint::checkpoint_folder(config_.run.dir, resumed->state.step);
  if (folder.empty() || fs::equivalent(folder, own, error)) {
    saved_step_ = resumed->state.step;
  }
  return resumed;
}

at::Tensor RunCheckpoints::copy_memory(int64_t processes_on_host) const {
  if (!config_.checkpoint.async || config_.checkpoint.every == 0 || mesh_.replicate_rank > 0) {
    return {};
  }
  const int64_t bytes = checkpoint::state_bytes(checkpoint::state_tensors(student_, optimizer_));
  const auto slab =
      device::HostSlab::allocate(bytes, student_.options().device, processes_on_host, "checkpoint.async: true");
  if (!slab.ok()) {
    metrics::log_warning(
        absl::StrCat(std::string(slab.status().message()), "\n  training waits for each checkpoint to be written"));
    return {};
  }
  return device::HostSlab::take(*slab, bytes);
}

void RunCheckpoints::open(RunJournal& journal, int64_t processes_on_host) {
  journal_ = &journal;
  checkpoint::CheckpointWriterOptions options;
  options.run_dir = config_.run.dir;
  options.keep = config_.checkpoint.keep;
  options.copy_memory = copy_memory(processes_on_host);
  options.before_publish = [this] { return journal_->sync(); };
  if (mesh_.is_main()) {
    options.waiting = [this](int64_t bytes, int64_t total) { show_waiting(bytes, total); };
  }
  writer_ = std::make_unique<checkpoint::CheckpointWriter>(std::move(options), info_, student_, optimizer_, mesh_);
}

void RunCheckpoints::show_waiting(int64_t bytes, int64_t total) {
  if (!waiting_) {
    waiting_.emplace("writing the checkpoint", total, "bytes", config_.run.progress);
  }
  waiting_->update(bytes);
}

absl::Status RunCheckpoints::report(const absl::StatusOr<checkpoint::Saved>& saved, bool tolerated) {
  waiting_.reset();
  if (saved.ok()) {
    saved_step_ = saved->step;
    journal_->message(saved->text());
    return absl::OkStatus();
  }
  if (!tolerated) {
    return saved.status();
  }
  metrics::log_warning(absl::StrCat(
      std::string(saved.status().message()),
      "; the checkpoints before it are as they were, training goes on (checkpoint.on_error: continue)"));
  return absl::OkStatus();
}

absl::Status RunCheckpoints::finish() {
  const auto ended = writer_->finish();
  return ended ? report(*ended, config_.checkpoint.on_error == config::OnSaveError::kContinue) : absl::OkStatus();
}

absl::Status RunCheckpoints::advance(const sharding::WritingRanks& ranks) {
  const auto ended = writer_ ? writer_->advance(ranks) : std::nullopt;
  return ended ? report(*ended, config_.checkpoint.on_error == config::OnSaveError::kContinue) : absl::OkStatus();
}

absl::Status RunCheckpoints::begin(checkpoint::TrainState state) {
  state.data_stages = data_.stages();
  return writer_->begin(state);
}

absl::Status RunCheckpoints::save_periodic(const checkpoint::TrainState& state) {
  if (writer_->in_flight()) {
    const Clock::time_point began = Clock::now();
    if (absl::Status status = finish(); !status.ok()) {
      return status;
    }
    journal_->message(absl::StrFormat(
        "the checkpoint of step %d waited %.2f s for the one before it; checkpoint.every is short for this disk",
        state.step, std::chrono::duration<double>(Clock::now() - began).count()));
  }
  absl::Status status = begin(state);
  if (!status.ok()) {
    return report(status, config_.checkpoint.on_error == config::OnSaveError::kContinue);
  }
  // Written already where there is no copy, but not yet complete.
  return config_.checkpoint.async ? absl::OkStatus() : finish();
}

absl::Status RunCheckpoints::save_final(const checkpoint::TrainState& state) {
  if (absl::Status status = finish(); !status.ok()) {
    return status;
  }
  if (saved_step_ == state.step) {
    return absl::OkStatus();
  }
  if (absl::Status status = begin(state); !status.ok()) {
    return status;
  }
  return report(*writer_->finish(), /*tolerated=*/false);
}

} // namespace distill::trainer
