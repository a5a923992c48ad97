#pragma once

#include <absl/status/statusor.h>

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

namespace distill::checkpoint {

struct SaverOptions {
  std::string run_dir;
  int64_t keep = 2; // complete checkpoints that stay, the new one included
  // Host memory of state_bytes(), to which the state is copied; a thread writes the copy. Undefined: the caller of
  // begin() writes, or there is nothing to write on this rank.
  at::Tensor copy_memory;
  // Called by the main rank before a checkpoint counts, on any thread: what belongs to it must reach the disk first.
  std::function<absl::Status()> before_publish;
};

struct Saved {
  int64_t step = 0;
  std::string folder;
  int64_t bytes = 0; // of all files
  double stall_seconds = 0; // in which training stood still on this rank, the next line's apart
  double wait_seconds = 0; // in finish(), for what was still being written
  double write_seconds = 0; // from the start of the save until the marker was on the disk

  std::string text() const; // for people, one line
};

// Saves checkpoints, one at a time. All ranks call begin(), advance() and finish() together. A checkpoint counts once
// every rank's shards are on the disk and rank 0 has published the folder; where any rank fails, all learn of it, what
// was written is removed, and the checkpoints before stay as they are.
class Saver {
 public:
  // `model`, `optimizer` and `mesh` outlive this.
  Saver(
      SaverOptions options, RunInfo info, sharding::ModelShards& model, optim::AdamW& optimizer,
      const sharding::Mesh& mesh);
  // Waits for what its threads are writing.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // Between two steps, with nothing in flight. An error: no save has begun, on any rank.
  absl::Status begin(const TrainState& state);
  bool in_flight() const {
    return saving_.has_value();
  }
  // Before the optimizer changes the state.
  void before_update();

  // What this rank contributes to sums over all ranks, which advance() takes. Zeros with nothing in flight.
  struct Vote {
    int64_t writing = 0;
    int64_t failed = 0;
  };
  Vote vote();
  // With the sums of the votes: how the save ended, or nothing while it goes on.
  std::optional<absl::StatusOr<Saved>> advance(const Vote& sums);

  // Waits until nothing is in flight: how the save ended, or nothing where there was none.
  std::optional<absl::StatusOr<Saved>> finish();

 private:
  struct Saving {
    TrainState state;
    std::chrono::steady_clock::time_point began;
    bool publishing = false; // all ranks' shards are written
    std::future<absl::Status> work; // of this rank's thread; not valid: nothing to do on this rank
    absl::Status result; // of the work that has ended
    double stall_seconds = 0;
    double wait_seconds = 0;
    std::vector<uint64_t> block_sums;
    int64_t file_bytes = 0; // of one rank's file
  };

  absl::Status write_shards(const std::vector<NamedTensor>& tensors);
  void start(std::function<absl::Status()> work);
  void collect_result();
  std::vector<std::vector<uint64_t>> exchange_sums();
  absl::Status publish_on_main(const std::vector<std::vector<uint64_t>>& sums);
  absl::StatusOr<Saved> end(absl::Status status);

  SaverOptions options_;
  RunInfo info_;
  sharding::ModelShards& model_;
  optim::AdamW& optimizer_;
  const sharding::Mesh& mesh_;
  std::unique_ptr<Snapshot> snapshot_;
  std::optional<Saving> saving_; // last: its thread uses the others
};

} // namespace distill::checkpoint
