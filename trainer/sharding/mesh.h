#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>

#include "trainer/sharding/communicator.h"
#include "trainer/sharding/heartbeat.h"
#include "trainer/sharding/peer_memory.h"

namespace distill::sharding {

// The way in which units are gathered.
enum class GatherWay {
  kAuto, // kCopy where the ranks of every shard axis can map each other's memory, else kCollective
  kCopy, // plain copies out of peer memory
  kCollective // the communicator's all-gather
};

// The ranks as shard x replicate: `shard` neighbouring ranks hold one copy of the models between them, and there are
// `replicate` such copies (HSDP; 1 x n is plain data parallelism, n x 1 is fully sharded). Every group has a
// communicator of its own, so that gathers, reductions and the host's small sums do not wait for each other.
struct Mesh {
  Mesh() = default;
  // GPU groups that leave() has not closed stay open, and the program then exits without running destructors: closing a
  // group could wait for ranks that are gone, or that are closing another group.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int64_t rank = 0; // global
  int64_t world_size = 1;
  int64_t shard_rank = 0; // within the shard axis
  int64_t shard_size = 1;
  int64_t replicate_rank = 0;
  int64_t replicate_size = 1;
  std::unique_ptr<Rendezvous> rendezvous; // null: one process
  std::unique_ptr<Heartbeat> heartbeat; // null: one process
  std::unique_ptr<Communicator> gather; // shard axis; null on one process, like all groups
  std::unique_ptr<Communicator> reduce; // shard axis
  std::unique_ptr<Communicator> replicate; // replicate axis; null where replicate_size is 1
  std::unique_ptr<Communicator> world; // all ranks, on the device: sums of metrics and norms
  std::unique_ptr<Communicator> host; // all ranks, over Gloo: numbers that the host needs
  std::unique_ptr<PeerMemory> peers; // of the shard axis; null: units are gathered by `gather`
  std::string gather_note; // how units are gathered, and why, for the log; empty on one process
  bool groups_on_gpus = false; // whether all groups but `host` are between GPUs
  std::function<void(int64_t step, const char* place)> watch; // also called by report_progress(); may be empty

  bool is_main() const {
    return rank == 0;
  }

  // The ranks as readers of data: data_size() parts, each of them read by rank data_rank() of these. Ranks that compute
  // one sample together would have the same data_rank().
  int64_t data_rank() const {
    return rank;
  }
  int64_t data_size() const {
    return world_size;
  }
  // The number of samples that are read together when each part has `own`.
  int64_t samples_together(int64_t own) const {
    return data_size() * own;
  }
  // The first of this rank's samples, of those that are read together from `first` on.
  int64_t own_first(int64_t first, int64_t own) const {
    return first + data_rank() * own;
  }

  // Posts this rank's step and phase, which the other ranks report if they time out waiting for it.
  void report_progress(int64_t step, const char* phase) const {
    if (watch) {
      watch(step, phase);
    }
    if (heartbeat != nullptr) {
      heartbeat->report_progress(step, phase);
    }
  }
};

// Joins the other ranks and makes the groups. shard * replicate must be the number of ranks. FailedPrecondition, with
// the reason, where `gather` is kCopy and memory cannot be shared. Unavailable names the ranks that did not come.
absl::StatusOr<std::unique_ptr<Mesh>> make_mesh(
    const RendezvousOptions& options, int64_t shard, int64_t replicate, at::Device device,
    GatherWay gather = GatherWay::kAuto);

// Every rank calls this at the end of a successful run. No rank talks to another one, or to the store, that is gone:
// every rank closes the device groups, which must not be used afterwards, and ends its heartbeat; when all have, every
// rank closes the host's group and posts that it leaves; rank 0, which serves the store, returns when all others have.
// It returns false if that took longer than `timeout` or failed: groups may then be owned by a thread that hangs, and
// the program must end without running destructors.
bool leave(Mesh& mesh, at::Device device, std::chrono::milliseconds timeout);

// The sum of `value` over all ranks, computed on the host; on one process, `value` itself.
int64_t sum_over_ranks(const Mesh& mesh, int64_t value);

// The host tensors of all parts of the data, which have the same size, in their order: [data_size, elements of `own`],
// on every rank.
at::Tensor gather_parts(const Mesh& mesh, const at::Tensor& own);

// Gives all ranks one verdict; all of them call it with their own status. Returns this rank's error; if one other rank
// failed, an error with its code, so that all ranks exit alike; if several did, Aborted; ok if no rank failed.
absl::Status agree(const Mesh& mesh, const absl::Status& status);

// Compares `content` on all ranks, which all call it. FailedPrecondition, with both hashes, on ranks whose content
// differs from rank 0's; `what` names the content in the message.
absl::Status check_equal_on_all_ranks(const Mesh& mesh, const std::string& what, const std::string& content);

} // namespace distill::sharding
