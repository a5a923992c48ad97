#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace distill::launch {

// Which process of the job this is.
struct RankInfo {
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0; // on its node
  int64_t local_gpu = 0; // the one it takes, of those that it sees
  int64_t local_world_size = 1;
  std::string master_addr = "127.0.0.1"; // where rank 0 listens
  int64_t master_port = 29500;
  int master_listen_fd = -1; // rank 0: a socket bound to the port, handed over by its parent; -1: none
  std::string launcher = "single process"; // torchrun | Slurm | Open MPI | PMI | single process

  // How many ranks a launcher has started; 0: none has, the process may start its own.
  int64_t launched() const {
    return launcher == "single process" ? 0 : world_size;
  }
};

// An environment variable's value; nullopt: not set.
using Environ = std::function<std::optional<std::string>(const char* name)>;
Environ process_environ();

// Reads the variables that torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Slurm
// (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE with SLURM_NODEID, or SLURM_NTASKS_PER_NODE,
// SLURM_NODELIST), Open MPI (OMPI_COMM_WORLD_*) and
// PMI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID) set, in this order; with none of them, a single process. MASTER_ADDR and
// MASTER_PORT apply to all of them; Slurm's first host stands in where MASTER_ADDR is not set. InvalidArgument names
// the variable, what was expected and what was found. A rank takes the GPU of its local rank, or where Slurm or MPI
// lets it see one alone (CUDA_VISIBLE_DEVICES), that one.
absl::StatusOr<RankInfo> detect_ranks(const Environ& environ);

// The environment variable through which a parent hands over RankInfo::master_listen_fd.
constexpr const char* kListenFdVariable = "DISTILL_MASTER_LISTEN_FD";

// Tasks on a node, from what Slurm says of all nodes: "8(x2),4" is 8, 8 and 4. nullopt where it cannot be read.
std::optional<int64_t> slurm_tasks_on_node(const std::string& tasks_per_node, int64_t node);

// First host of a Slurm node list: "node[007-009,12],gpu3" gives "node007". Empty where it cannot be read.
std::string first_slurm_host(const std::string& node_list);

} // namespace distill::launch
