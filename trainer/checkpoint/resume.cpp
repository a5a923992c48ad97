#include "trainer/checkpoint/resume.h"

#include "data/base/status_macros.h"
#include "trainer/checkpoint/data_change.h"
#include "trainer/checkpoint/run_state.h"
#include "trainer/metrics/log.h"

namespace distill::checkpoint {
namespace {

// Whether two descriptions of the data differ in the hash of the files alone.
bool same_reading(const std::string& saved, const std::string& current) {
  constexpr const char* kHash = "sha256 ";
  return saved.substr(0, saved.find(kHash)) == current.substr(0, current.find(kHash));
}

// Adapters belong to the weights that they were trained on.
absl::Status check_base(const std::string& folder, const RunInfo& saved, const ResumingRun& run) {
  const auto then = saved.model_files.find(kBaseOfAdapters), now = run.model_files.find(kBaseOfAdapters);
  if (then == saved.model_files.end() || now == run.model_files.end() || then->second == now->second) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      folder, ": cannot be continued: the files of ", kBaseOfAdapters,
      ", the base of its adapters, are others than those that they were trained on: expected the hash ", then->second,
      ", found ", now->second));
}

absl::Status check_identity(const std::string& folder, const Index& index, const ResumingRun& run) {
  const RunIdentity &saved = index.info.identity, &current = run.identity;
  const DataStage& stage = index.state.data_stages.back();
  const bool any_data = run.other_data_allowed && run.other_data_allowed(index.state);
  const DataIdentity data = any_data ? stage.data : run.data_in(stage);
  struct Part {
    const char* what;
    const std::string& saved;
    const std::string& current;
  };
  const Part parts[] = {
      {"model", saved.model, current.model},
      {"optimizer", saved.optimizer, current.optimizer},
      {"data", stage.data.text, data.text},
      {"tokenizer", saved.tokenizer, current.tokenizer}};
  std::string message;
  for (const Part& part : parts) {
    if (part.saved != part.current) {
      absl::StrAppend(
          &message, "\n  ", part.what, "\n    checkpoint: ", part.saved, "\n    this run:   ", part.current);
    }
  }
  if (message.empty()) {
    return absl::OkStatus();
  }
  if (saved == current && (stage.data.sets != data.sets || same_reading(stage.data.text, data.text))) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": cannot be continued:", data_change(folder, index.info.config, stage.data.sets, data.sets)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      folder, ": this checkpoint belongs to another run:", message,
      "\n  resume with the configuration of that run, or start a new run with --overwrite"));
}

absl::Status check_units(const std::string& folder, const Index& index, const sharding::ModelShards& model) {
  std::vector<models::UnitLayout> layouts;
  layouts.reserve(static_cast<size_t>(model.num_units()));
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    layouts.push_back(model.unit(unit).layout);
  }
  if (index.units != describe_units(layouts)) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": its units have another layout than those of this program (it was written by ", index.info.program,
        "); export the model with that program and start a new run from it"));
  }
  return absl::OkStatus();
}

// The part of resuming that needs no communication.
absl::Status read_on_this_rank(
    const std::string& folder, const ResumingRun& run, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh, Resumed& resumed) {
  ASSIGN_OR_RETURN(const Index index, read_index(folder));
  RETURN_IF_ERROR(check_identity(folder, index, run));
  RETURN_IF_ERROR(check_base(folder, index.info, run));
  RETURN_IF_ERROR(check_units(folder, index, model));
  StateReader reader(folder, index);
  RETURN_IF_ERROR(read_state(reader, index, model, optimizer, mesh));
  resumed = {folder, index.state, index.info, "", {}, {}};
  return absl::OkStatus();
}

// Makes all ranks return an error if any rank has one: DataLoss if damage is the only kind of error, else Aborted (or
// the rank's own error).
absl::Status agree_on_damage(const sharding::Mesh& mesh, const absl::Status& status) {
  const int64_t damaged = sharding::sum_over_ranks(mesh, absl::IsDataLoss(status) ? 1 : 0);
  const int64_t failed = sharding::sum_over_ranks(mesh, status.ok() ? 0 : 1);
  if (!status.ok() || failed == 0) {
    return absl::IsDataLoss(status) && failed > damaged
        ? absl::AbortedError(status.message()) // another rank has an error that is not damage
        : status;
  }
  const std::string message = absl::StrFormat("%d other rank(s) could not read the checkpoint", failed);
  return failed == damaged ? absl::DataLossError(message) : absl::AbortedError(message);
}

// The step of the newest complete checkpoint, as rank 0 sees the folder; -1: there is none.
int64_t newest_step(const std::string& run_dir, const sharding::Mesh& mesh) {
  int64_t step = -1;
  if (mesh.is_main()) {
    const auto found = complete_checkpoints(run_dir);
    step = found.empty() ? -1 : found.rbegin()->first;
  }
  return sharding::sum_over_ranks(mesh, mesh.is_main() ? step : 0);
}

} // namespace

absl::StatusOr<Resumed> resume_from(
    const std::string& folder, const ResumingRun& run, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh) {
  Resumed resumed;
  const absl::Status status = agree_on_damage(mesh, read_on_this_rank(folder, run, model, optimizer, mesh, resumed));
  if (!status.ok()) {
    return status;
  }
  share_with_replicas(model, optimizer, mesh);
  model.refresh_weights();
  return resumed;
}

absl::StatusOr<Resumed> resume_newest(
    const std::string& run_dir, const ResumingRun& run, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh) {
  std::string damaged;
  for (int64_t step = 0; (step = newest_step(run_dir, mesh)) >= 0;) {
    const std::string folder = checkpoint_folder(run_dir, step).string();
    auto resumed = resume_from(folder, run, model, optimizer, mesh);
    if (resumed.ok()) {
      resumed->damaged = damaged;
    }
    if (resumed.ok() || !absl::IsDataLoss(resumed.status())) {
      return resumed;
    }
    absl::StrAppend(&damaged, "\n  ", std::string(resumed.status().message()));
    metrics::log_warning(
        absl::StrCat("checkpoint ", folder, " is damaged and is not used: ", std::string(resumed.status().message())));
    absl::Status moved;
    if (mesh.is_main()) {
      const std::string aside = set_aside(folder, "damaged");
      moved = aside == folder
          ? absl::InternalError(absl::StrCat(folder, ": is damaged and cannot be renamed; remove it by hand"))
          : absl::OkStatus();
    }
    RETURN_IF_ERROR(sharding::agree(mesh, moved));
  }
  return absl::NotFoundError(absl::StrCat(
      "--resume: ", run_dir, "/checkpoints holds no complete checkpoint",
      damaged.empty() ? "" : " that is not damaged:" + damaged, "; start a new run with --overwrite"));
}

} // namespace distill::checkpoint
