#pragma once

#include <absl/status/statusor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/index.h"
#include "trainer/checkpoint/run_state.h"
#include "trainer/checkpoint/snapshot.h"
#include "trainer/sharding/writing_ranks.h"

namespace distill::checkpoint {

struct CheckpointWriterOptions {
  std::string run_dir;
  int64_t keep = 2; // complete checkpoints to keep, the new one included
  // Host memory of state_bytes() bytes, to which the state is copied; a thread then writes the copy. Undefined: begin()
  // writes the state itself, or this rank has nothing to write.
  at::Tensor copy_memory;
  // Called by rank 0 on any thread before a checkpoint becomes complete, to sync the files that belong to it.
  std::function<absl::Status()> before_publish;
  // Called where training waits for the writing of this rank's file, on the thread that calls begin() or finish(), with
  // how much of it is written.
  std::function<void(int64_t bytes, int64_t total)> waiting;
};

struct Saved {
  int64_t step = 0;
  std::string folder;
  int64_t bytes = 0; // size of all files
  double stall_seconds = 0; // how long training on this rank stood still, without wait_seconds
  double wait_seconds = 0; // how long finish() waited until the checkpoint was written
  double write_seconds = 0; // from the start of the save until the marker was on the disk

  std::string text() const; // a log line
};

// Saves checkpoints, one at a time. All ranks must call begin(), advance() and finish() together. A checkpoint is
// complete once the shards of every rank are on the disk and rank 0 has published the folder. If any rank fails, all
// ranks get an error, the unfinished folder is removed, and earlier checkpoints remain.
class CheckpointWriter {
 public:
  // `model`, `optimizer` and `mesh` outlive this.
  CheckpointWriter(
      CheckpointWriterOptions options, RunInfo info, sharding::ModelShards& model, optim::AdamW& optimizer,
      const sharding::Mesh& mesh);
  // Waits for the thread that is writing.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Starts a save. To be called between two steps, with no save in flight. On an error, no rank has started one.
  absl::Status begin(const TrainState& state);
  bool in_flight() const {
    return saving_.has_value();
  }
  // To be called before the optimizer changes the state: waits until the state has been copied.
  void before_update();

  // How the save stands on this rank. Zeros: no save is in flight.
  sharding::WritingRanks own_writing();
  // Continues the save, given the sums over all ranks. Returns its result; nullopt: it is not finished.
  std::optional<absl::StatusOr<Saved>> advance(const sharding::WritingRanks& ranks);

  // Waits for the end of the save that is in flight and returns its result; nullopt: there was none.
  std::optional<absl::StatusOr<Saved>> finish();

 private:
  struct Saving {
    TrainState state;
    std::chrono::steady_clock::time_point began;
    bool publishing = false; // the shards of all ranks are written
    std::future<absl::Status> work; // the work of this rank's thread; not valid: this rank has none
    absl::Status result; // of the last work that has ended
    double stall_seconds = 0;
    double wait_seconds = 0;
    std::vector<uint64_t> block_sums;
    int64_t file_bytes = 0; // of one rank's file
    int64_t tensor_bytes = 0; // of them, as far as known before the file is written
    std::atomic<int64_t> written = 0; // bytes
  };

  absl::Status write_shards(const std::vector<NamedTensor>& tensors);
  void start(std::function<absl::Status()> work);
  void report_waiting() const;
  void collect_result();
  std::vector<std::vector<uint64_t>> exchange_sums();
  absl::Status publish_on_main(const std::vector<std::vector<uint64_t>>& sums);
  absl::StatusOr<Saved> end(absl::Status status);

  CheckpointWriterOptions options_;
  RunInfo info_;
  sharding::ModelShards& model_;
  optim::AdamW& optimizer_;
  const sharding::Mesh& mesh_;
  std::unique_ptr<Snapshot> snapshot_;
  std::optional<Saving> saving_; // declared last: its thread uses the other members
};

} // namespace distill::checkpoint
