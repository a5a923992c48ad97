#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

// Collectives over c10d: NCCL between GPUs, Gloo between CPU processes. No collective is written by hand.
namespace distill::sharding {

class PeerMemory;

// One group of ranks with its own communicator. Operations of one communicator run one after the other, whatever their
// streams; operations of different communicators do not wait for each other.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  // On CUDA an operation is queued on the current stream, and the caller owns the tensors' lifetimes. On the CPU it is
  // done on return. Errors of the transport are thrown (CommunicationError).
  virtual void all_gather(at::Tensor full, const at::Tensor& shard) = 0; // full: [size * shard.numel]
  virtual void reduce_scatter(at::Tensor shard, const at::Tensor& full) = 0; // sums
  virtual void all_reduce(at::Tensor tensor) = 0; // sums, in place
  virtual void all_reduce_max(at::Tensor tensor) = 0; // the largest, in place
  virtual void broadcast(at::Tensor tensor, int64_t root) = 0;

  // Closes the group once its operations are over. Every member calls it at the end of a successful run, before the
  // group is destroyed. May wait for the other members.
  virtual void shutdown() = 0;
};

// A store of short texts by key that all ranks share. One thread at a time uses it. Throws c10::Error when rank 0 is
// gone.
class Board {
 public:
  virtual ~Board() = default;
  virtual void set(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0; // nullopt: not set
};

// This is thrown if a collective failed, or did not end in time: another rank is gone, stopped or late. The message has
// no stack trace.
class CommunicationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RendezvousOptions {
  std::string master_addr = "127.0.0.1";
  int64_t master_port = 29500;
  int master_listen_fd = -1; // rank 0: a socket, used if it is bound to the port already; -1: none
  bool launcher_serves = false; // the launcher serves a store at this address, and rank 0 does not
  int64_t attempt = 0; // number of times that the launcher has started the ranks again, with the same store
  int64_t rank = 0;
  int64_t world_size = 1;
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
  std::string host; // this rank's, for messages
  int64_t nccl_max_ctas = 0; // multiprocessors that an NCCL collective may take; 0: NCCL decides
};

// The rendezvous of all ranks (a c10d TCPStore that rank 0 or the launcher serves), from which groups are made.
class Rendezvous {
 public:
  // DeadlineExceeded if some rank does not join in time; the message names the missing ranks if the store can be read.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> join(const RendezvousOptions& options);
  virtual ~Rendezvous() = default;

  // Every rank makes the same groups in the same order; `members` holds global ranks in ascending order. Returns null
  // on a rank that is not a member. `name` must differ between groups.
  virtual std::unique_ptr<Communicator> gloo_group(const std::string& name, const std::vector<int64_t>& members) = 0;
  virtual std::unique_ptr<Communicator> nccl_group(
      const std::string& name, const std::vector<int64_t>& members, at::Device device) = 0;

  // Returns memory that all members have mapped; they call it together (trainer/sharding/peer_memory.h). `name` must
  // differ between groups. Throws if it cannot be had.
  virtual std::unique_ptr<PeerMemory> peer_memory(
      const std::string& name, const std::vector<int64_t>& members, at::Device device) = 0;

  // Returns every rank's text, in the order of the ranks; all call it together. `key` must differ between calls.
  virtual std::vector<std::string> exchange(const std::string& key, const std::string& text) = 0;

  // Makes a new connection to the store, for one thread.
  virtual std::unique_ptr<Board> board() const = 0;

  // Returns true when every rank has called it with this `key`; false: that took longer than `timeout`, or the store is
  // gone.
  virtual bool meet(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Call this as the last use of the store by this rank, which has ended all of its threads and connections that use
  // it. Rank 0, which may serve the store, returns when all other ranks have called it, so that no rank ever talks to a
  // store that is gone. It returns false as meet() does.
  virtual bool leave(std::chrono::milliseconds timeout) = 0;

  virtual int64_t rank() const = 0;
  virtual int64_t world_size() const = 0;
};

} // namespace distill::sharding
