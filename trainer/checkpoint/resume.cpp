#include "trainer/checkpoint/resume.h"

#include "trainer/checkpoint/run_state.h"
#include "trainer/config/reader.h"
#include "trainer/metrics/log.h"

namespace distill::checkpoint {
namespace {

absl::Status check_identity(const std::string& folder, const RunIdentity& saved, const RunIdentity& current) {
  struct Part {
    const char* what;
    const std::string& saved;
    const std::string& current;
  };
  const Part parts[] = {
      {"model", saved.model, current.model},
      {"optimizer", saved.optimizer, current.optimizer},
      {"data", saved.data, current.data},
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
  return absl::FailedPreconditionError(absl::StrCat(
      folder, ": this checkpoint is of another run:", message,
      "\n  resume with the configuration it was made with, or start afresh with --overwrite"));
}

absl::Status check_units(const std::string& folder, const Index& index, const sharding::ModelShards& model) {
  std::vector<models::UnitLayout> layouts;
  layouts.reserve(static_cast<size_t>(model.num_units()));
  for (int64_t unit = 0; unit < model.num_units(); ++unit) {
    layouts.push_back(model.unit(unit).layout);
  }
  if (index.units != describe_units(layouts)) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": the flat buffers of its units are laid out otherwise than this program's (it was written by ",
        index.info.program, "); export the model with that program and start from it"));
  }
  return absl::OkStatus();
}

// Of a checkpoint that does not say: what its configuration has.
DataStage only_stage(const std::string& config) {
  const config::DataSection data = config::read(config, "config", {}).config.data;
  return {0, 0, data.seq_len, data.packing};
}

// What one rank does by itself.
absl::Status read_on_this_rank(
    const std::string& folder, const IdentityAt& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh, Resumed& resumed) {
  auto index = read_index(folder);
  if (!index.ok()) {
    return index.status();
  }
  if (index->version == kOldestVersion) {
    index->state.data_stages = {only_stage(index->info.config)};
  }
  const RunIdentity own = identity(index->state.data_stages.back());
  if (absl::Status status = check_identity(folder, index->info.identity, own); !status.ok()) {
    return status;
  }
  if (absl::Status status = check_units(folder, *index, model); !status.ok()) {
    return status;
  }
  StateReader reader(folder, *index);
  if (absl::Status status = read_state(reader, *index, model, optimizer, mesh); !status.ok()) {
    return status;
  }
  resumed = {folder, index->state, index->info, "", {}, {}};
  return absl::OkStatus();
}

// This rank's own error, or that of the others: DataLoss where the worst that any rank met is damage.
absl::Status agree_on_damage(const sharding::Mesh& mesh, const absl::Status& status) {
  const int64_t damaged = sharding::sum_over_ranks(mesh, absl::IsDataLoss(status) ? 1 : 0);
  const int64_t failed = sharding::sum_over_ranks(mesh, status.ok() ? 0 : 1);
  if (!status.ok() || failed == 0) {
    return absl::IsDataLoss(status) && failed > damaged
        ? absl::AbortedError(status.message()) // another rank met something worse
        : status;
  }
  const std::string message = absl::StrFormat("%d other rank(s) could not read the checkpoint", failed);
  return failed == damaged ? absl::DataLossError(message) : absl::AbortedError(message);
}

// The newest complete checkpoint as rank 0 sees the folder; -1: none.
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
    const std::string& folder, const IdentityAt& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh) {
  Resumed resumed;
  const absl::Status status =
      agree_on_damage(mesh, read_on_this_rank(folder, identity, model, optimizer, mesh, resumed));
  if (!status.ok()) {
    return status;
  }
  share_with_replicas(model, optimizer, mesh);
  model.refresh_weights();
  return resumed;
}

absl::StatusOr<Resumed> resume_newest(
    const std::string& run_dir, const IdentityAt& identity, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh) {
  std::string damaged;
  for (int64_t step = 0; (step = newest_step(run_dir, mesh)) >= 0;) {
    const std::string folder = checkpoint_folder(run_dir, step).string();
    auto resumed = resume_from(folder, identity, model, optimizer, mesh);
    if (resumed.ok()) {
      resumed->damaged = damaged;
    }
    if (resumed.ok() || !absl::IsDataLoss(resumed.status())) {
      return resumed;
    }
    absl::StrAppend(&damaged, "\n  ", std::string(resumed.status().message()));
    metrics::log_warning(
        absl::StrCat("checkpoint ", folder, " is damaged and not used: ", std::string(resumed.status().message())));
    absl::Status moved;
    if (mesh.is_main()) {
      const std::string aside = set_aside(folder, "damaged");
      moved = aside == folder
          ? absl::InternalError(absl::StrCat(folder, ": is damaged, and cannot be renamed; remove it by hand"))
          : absl::OkStatus();
    }
    if (absl::Status status = sharding::agree(mesh, moved); !status.ok()) {
      return status;
    }
  }
  return absl::NotFoundError(absl::StrCat(
      "--resume: ", run_dir, "/checkpoints holds no complete checkpoint",
      damaged.empty() ? "" : " that is not damaged:" + damaged, "; start afresh with --overwrite"));
}

} // namespace distill::checkpoint
