#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/packing_mode.h"

namespace distill::checkpoint {

// A data set of data.train.
struct DataSetSize {
  std::string path;
  int64_t documents = 0;
  int64_t tokens = 0;

  bool operator==(const DataSetSize&) const = default;
};

// What identifies training data: a run that is resumed must read the same.
struct DataIdentity {
  std::string text; // the data and the order of their samples, in the lengths and packing of a stage; errors show it
  // How large the data sets are, for errors. Empty: the program that wrote the checkpoint did not record it.
  std::vector<DataSetSize> sets = {};

  bool operator==(const DataIdentity&) const = default;
};

// From optimizer step `step` and sample `first_sample` of data.train on, the run read this data in sequences of these
// lengths and this packing.
struct DataStage {
  int64_t step = 0; // steps done before this stage
  int64_t first_sample = 0;
  int64_t seq_len = 0;
  data::PackingMode packing = data::PackingMode::kPack;
  int64_t teacher_seq_len = 0; // of the sequences that the teacher reads; 0: the data has no teacher stream
  DataIdentity data = {}; // empty: the next stage reads the same data in other lengths; never empty in the last stage

  bool operator==(const DataStage&) const = default;
};

// The round of on-policy data that a run is in (trainer/onpolicy/).
struct RoundPosition {
  int64_t number = -1; // from 0; -1: none has begun
  int64_t first_step = 0; // steps done before it
  int64_t steps = 0; // that it lasts
  int64_t sequences = 0; // on-policy ones in each of its steps
  int64_t first_prompt = 0; // its prompts are those from this number on, and the next round's come after them
  int64_t prompts = 0;
  std::string data; // identity of its token shard
  int64_t held_out = 0; // prompts of onpolicy.eval_prompts that the engine continues, too

  bool begun() const {
    return number >= 0;
  }
  bool operator==(const RoundPosition&) const = default;
};

// The position of a run: its state without the tensors.
struct TrainState {
  int64_t step = 0; // optimizer steps done, skipped and empty ones included
  int64_t samples = 0; // training samples consumed; also the number of the next one
  int64_t tokens = 0; // consumed, padding included
  int64_t skipped_total = 0; // steps whose gradients were not finite
  int64_t skipped_in_row = 0;
  int64_t empty_steps = 0; // steps in which no token had a target
  int64_t evaluated_step = -1; // step of the last recorded evaluation; -1: there was none
  std::vector<DataStage> data_stages; // in order, the first one from sample 0
  int64_t train_samples = 0; // those of `samples` that were of data.train, and not on-policy
  RoundPosition round = {}; // on-policy

  bool operator==(const TrainState&) const = default;
};

// What must be equal in the run that saved and the run that resumes, apart from the data. Each is a text, which errors
// show.
struct RunIdentity {
  std::string model; // shape of the student
  std::string optimizer; // its name, and the dtype of its state
  std::string tokenizer; // hash; empty where no tokenizer is known

  bool operator==(const RunIdentity&) const = default;
};

// Further facts about the run that saved: for the log of a resumed run, which lists changed keys, and for `distill
// export`.
struct RunInfo {
  RunIdentity identity;
  std::string config; // the resolved configuration, YAML
  std::string program; // name and version
  std::string student_folder; // absolute; an exported model gets its config.json and tokenizer
  std::map<std::string, std::string> model_files; // config::hashes_beside_checkpoints(); older versions have none
};
inline constexpr const char* kBaseOfAdapters = "student.path"; // its key in model_files

} // namespace distill::checkpoint
