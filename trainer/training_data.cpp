#include "trainer/training_data.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "trainer/config/run_length.h"

namespace distill::trainer {
namespace {

using checkpoint::DataStage;

data::Stage lengths_of(const DataStage& stage) {
  return {stage.first_sample, stage.seq_len, stage.packing, stage.teacher_seq_len};
}

bool same_lengths(const DataStage& a, const DataStage& b) {
  return a.seq_len == b.seq_len && a.packing == b.packing && a.teacher_seq_len == b.teacher_seq_len;
}

} // namespace

TrainingData::TrainingData(std::shared_ptr<data::Dataset> set) : set_(std::move(set)), stages_{own_stage(0, 0)} {}

// The stage in which the data set is read with its own lengths from sample `first_sample` on, after `step` steps.
DataStage TrainingData::own_stage(int64_t step, int64_t first_sample) const {
  const data::DataOptions& options = set_->options();
  DataStage stage{step, first_sample, options.seq_len, options.packing, set_->teacher_seq_len()};
  stage.data = identity(stage);
  return stage;
}

checkpoint::DataIdentity TrainingData::identity(const DataStage& stage) const {
  const data::DataOptions& options = set_->options();
  const int64_t teacher_seq_len = stage.teacher_seq_len > 0 ? stage.teacher_seq_len : stage.seq_len;
  checkpoint::DataIdentity identity;
  identity.text = absl::StrFormat(
      "%d sources, seq_len %d, %s%s, %s, seed %d, sha256 %s", options.sources.size(), stage.seq_len,
      set_->teacher_seq_len() > 0 ? absl::StrFormat("teacher_seq_len %d, ", teacher_seq_len) : "",
      base::enum_name(stage.packing), options.shuffle ? "shuffled" : "in order", options.seed,
      base::hex(set_->fingerprint(lengths_of(stage))));
  for (const data::SourceStats& stats : set_->stats()) {
    identity.sets.push_back({stats.path, stats.documents, stats.tokens});
  }
  return identity;
}

bool TrainingData::reads_set(const DataStage& stage) const {
  return stage.data.text == identity(stage).text;
}

void TrainingData::drop_last_stage() {
  const DataStage dropped = std::move(stages_.back());
  stages_.pop_back();
  if (!stages_.empty() &&
      stages_.back().data.text.empty()) { // it read the same data, and left the identity to the next
    stages_.back().data = reads_set(dropped) ? identity(stages_.back()) : dropped.data;
  }
}

size_t TrainingData::first_stage_of_set() const {
  size_t first = stages_.size() - 1;
  while (first > 0 && stages_[first - 1].data.text.empty()) {
    --first;
  }
  return first;
}

absl::StatusOr<std::vector<std::string>> TrainingData::continue_from(
    const checkpoint::TrainState& state, const std::string& folder) {
  stages_ = state.data_stages;
  const DataStage own = own_stage(state.step, state.train_samples);
  const auto continues = [&] {
    return !stages_.empty() && reads_set(stages_.back()) && same_lengths(stages_.back(), own);
  };
  if (!continues() && stages_.back().first_sample == state.train_samples) {
    drop_last_stage(); // nothing was read in it
  }
  if (!continues()) {
    if (!stages_.empty() && reads_set(stages_.back())) {
      stages_.back().data = {};
    }
    stages_.push_back(own);
  }
  stages_.back().data = own.data;
  std::vector<data::Stage> of_this_set;
  for (size_t i = first_stage_of_set(); i < stages_.size(); ++i) {
    of_this_set.push_back(lengths_of(stages_[i]));
  }
  auto lines = set_->continue_from(of_this_set);
  if (!lines.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(folder, "/index.json: ", std::string(lines.status().message())));
  }
  if (stages_.back().first_sample < state.train_samples || stages_.size() == 1) {
    return std::vector<std::string>();
  }
  if (of_this_set.size() == 1) {
    lines->insert(
        lines->begin(),
        absl::StrFormat(
            "data.train: other data than before from sample %d on: %s", state.train_samples, own.data.text));
  }
  return lines;
}

int64_t TrainingData::total_steps(const config::Config& config, const checkpoint::TrainState& state) const {
  int64_t tokens = state.tokens;
  if (config.train.epochs > 0) { // those of this data set alone count
    tokens = 0;
    for (size_t i = first_stage_of_set(); i < stages_.size(); ++i) {
      const int64_t end = i + 1 < stages_.size() ? stages_[i + 1].first_sample : state.train_samples;
      tokens += (end - stages_[i].first_sample) * stages_[i].seq_len;
    }
  }
  return config::total_steps(config, set_->num_samples(), {state.step, tokens});
}

} // namespace distill::trainer
