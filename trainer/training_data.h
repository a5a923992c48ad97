#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "trainer/checkpoint/state.h"
#include "trainer/config/config.h"

namespace distill::trainer {

// The training data of a run: the stages that it has been through, each with the identity of its data, and the data set
// that the last stage reads. A stage begins where a resumed run has other lengths, another packing or other data than
// before. The samples of data.train that a run has read are numbered through all stages; its on-policy ones do not
// count.
class TrainingData {
 public:
  // At the start of a run, whose only stage reads `set`.
  explicit TrainingData(std::shared_ptr<data::Dataset> set);

  const data::Dataset& set() const {
    return *set_;
  }
  std::shared_ptr<const data::Dataset> shared_set() const {
    return set_;
  }
  const std::vector<checkpoint::DataStage>& stages() const {
    return stages_;
  }
  // The identity of the data set in the lengths and packing of a stage. Equal identities mean equal samples.
  checkpoint::DataIdentity identity(const checkpoint::DataStage& stage) const;

  // Goes to where a checkpoint's state stands, before samples are read. If the data set, its lengths or its packing are
  // others than those of the checkpoint's last stage, the next stage begins there. Returns log lines about the data at
  // the start of a stage; empty: the stage continues. FailedPrecondition names `folder`, the checkpoint's.
  absl::StatusOr<std::vector<std::string>> continue_from(
      const checkpoint::TrainState& state, const std::string& folder);

  // Optimizer steps of the whole run, which stands at `state` (config::total_steps). The epochs of train.epochs are
  // those of this data set; train.steps and train.tokens count from the start of the run.
  int64_t total_steps(const config::Config& config, const checkpoint::TrainState& state) const;

 private:
  checkpoint::DataStage own_stage(int64_t step, int64_t first_sample) const;
  bool reads_set(const checkpoint::DataStage& stage) const; // whether a stage that has an identity read this data set
  void drop_last_stage();
  size_t first_stage_of_set() const; // its index in stages_

  std::shared_ptr<data::Dataset> set_;
  std::vector<checkpoint::DataStage> stages_;
};

} // namespace distill::trainer
