#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/packing_mode.h"

namespace distill::checkpoint {

// From optimizer step `step` and training sample `first_sample` on, rows had this length and packing.
struct DataStage {
  int64_t step = 0; // done before
  int64_t first_sample = 0;
  int64_t seq_len = 0;
  data::PackingMode packing = data::PackingMode::kPack;

  bool operator==(const DataStage&) const = default;
};

// Where the run stands, besides the tensors.
struct TrainState {
  int64_t step = 0; // optimizer steps done, skipped ones included
  int64_t samples = 0; // training samples consumed; the next one's index
  int64_t tokens = 0; // consumed, padding included
  int64_t skipped_total = 0; // steps whose gradients were not finite
  int64_t skipped_in_row = 0;
  int64_t evaluated_step = -1; // the step after which the last evaluation was recorded; -1: none was
  std::vector<DataStage> data_stages; // in order, the first one from 0; what `samples` counts

  bool operator==(const TrainState&) const = default;
};

// What a run that resumes must share with the one that saved. Free text, compared literally, shown side by side.
struct RunIdentity {
  std::string model; // shape of the student
  std::string optimizer; // which one, and the dtype of its state
  std::string data; // the training set and its order
  std::string tokenizer; // hash; empty where no tokenizer is known

  bool operator==(const RunIdentity&) const = default;
};

// What a checkpoint says about the run besides: for people, for `distill export`, and for a resumed run, which says
// what has changed.
struct RunInfo {
  RunIdentity identity;
  std::string config; // the resolved configuration, YAML
  std::string program; // name and version
  std::string student_folder; // absolute; its config.json and tokenizer go with an exported model
};

} // namespace distill::checkpoint
