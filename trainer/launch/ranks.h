#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "data/base/enum_names.h"

namespace distill::launch {

// The program that has started this process as one rank of many.
enum class Launcher {
  kNone, // a single process, which may start its own ranks
  kTorchrun,
  kSlurm,
  kOpenMpi,
  kPmi,
};
constexpr auto enum_names(Launcher) {
  return base::names_of<Launcher>("a single process", "torchrun", "Slurm", "Open MPI", "PMI");
}

// This process's place among the ranks of the job. A command reads it once and hands it down.
struct RankInfo {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0; // on this node
  int64_t local_gpu = 0; // index of the rank's GPU among the visible ones
  int64_t local_world_size = 1; // ranks on this node
  std::string master_addr = "127.0.0.1"; // where rank 0 listens
  int64_t master_port = 29500;
  int master_listen_fd = -1; // rank 0: a socket bound to the port, inherited from the parent process; -1: none
  Launcher launcher = Launcher::kNone;
  bool launcher_serves = false; // the launcher serves a store at master_addr, where rank 0 then cannot listen
  int64_t attempt = 0; // number of times that the launcher has started the ranks again, with the same store

  // Number of ranks that a launcher has started; 0: none has.
  int64_t launched() const {
    return launcher == Launcher::kNone ? 0 : world_size;
  }
  // Whether this process prints what a signal leads to. Rank 0 does, unless distill has started it; its parent does
  // then.
  bool tells_the_user() const {
    return rank == 0 && master_listen_fd < 0;
  }
};

// Returns the value of an environment variable; nullopt: it is not set.
using Environ = std::function<std::optional<std::string>(const char* name)>;
Environ process_environ();

// Reads the variables of the first of these launchers whose rank and size are set: torchrun (RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE), Open MPI (OMPI_COMM_WORLD_*), Slurm (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID,
// SLURM_STEP_TASKS_PER_NODE with SLURM_NODEID, or SLURM_NTASKS_PER_NODE), PMI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID,
// MPI_LOCALNRANKS). A part of a launcher's variables is an error; the shell of salloc and the script of sbatch, in
// which Slurm has started no rank, are a single process. MASTER_ADDR and MASTER_PORT apply to all of them; without
// MASTER_ADDR, the first host of SLURM_NODELIST does. Under torchrun the store of its agent is there
// (TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT). A rank's GPU is the one of its local rank, or the only
// visible one where Slurm or MPI restricts the rank to one GPU (CUDA_VISIBLE_DEVICES). InvalidArgument names the
// variable, what was expected and what was found.
absl::StatusOr<RankInfo> detect_ranks(const Environ& environ);

// The environment variable through which a parent process hands RankInfo::master_listen_fd down to rank 0.
constexpr const char* kListenFdVariable = "DISTILL_MASTER_LISTEN_FD";

// Tasks on node number `node`, from Slurm's list for all nodes: "8(x2),4" stands for 8, 8 and 4 tasks. nullopt: the
// list cannot be parsed, or has no such node.
std::optional<int64_t> slurm_tasks_on_node(const std::string& tasks_per_node, int64_t node);

// First host of a Slurm node list: "node[007-009,12],gpu3" gives "node007". Empty: the list cannot be parsed.
std::string first_slurm_host(const std::string& node_list);

} // namespace distill::launch
