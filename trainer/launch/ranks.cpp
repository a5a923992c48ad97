#include "trainer/launch/ranks.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include <cstdlib>

#include "data/base/status_macros.h"

namespace distill::launch {
namespace {

// The variables of one launcher. It is recognised by its rank and size. The launchers are in the order of precedence:
// torchrun and mpirun may run inside a Slurm allocation, whose variables the processes inherit.
struct Variables {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};
constexpr Variables kLaunchers[] = {
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
    {Launcher::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

absl::StatusOr<int64_t> integer(const Environ& environ, const char* name, int64_t min, int64_t max) {
  const std::string text = environ(name).value_or("");
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < min || value > max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment variable ", name, ": expected an integer from ", min, " to ", max, ", found '", text, "'"));
  }
  return value;
}

// Rank, size and GPU as one launcher's variables give them.
absl::StatusOr<RankInfo> read_variables(const Environ& environ, const Variables& names) {
  constexpr int64_t kMaxRanks = 1 << 20;
  RankInfo info;
  info.launcher = names.launcher;
  ASSIGN_OR_RETURN(info.world_size, integer(environ, names.size, 1, kMaxRanks));
  ASSIGN_OR_RETURN(info.rank, integer(environ, names.rank, 0, info.world_size - 1));
  info.local_rank = info.rank;
  info.local_world_size = info.world_size;
  if (environ(names.local_rank)) {
    ASSIGN_OR_RETURN(info.local_rank, integer(environ, names.local_rank, 0, info.world_size - 1));
  }
  if (environ(names.local_size)) {
    ASSIGN_OR_RETURN(info.local_world_size, integer(environ, names.local_size, 0, info.world_size));
  }
  if (info.launcher == Launcher::kSlurm) { // SLURM_NTASKS_PER_NODE is what was requested; nodes may have fewer tasks
    int64_t node = 0;
    const auto tasks = environ("SLURM_STEP_TASKS_PER_NODE");
    if (tasks && absl::SimpleAtoi(environ("SLURM_NODEID").value_or(""), &node)) {
      info.local_world_size = slurm_tasks_on_node(*tasks, node).value_or(info.local_world_size);
    }
  }
  const std::string visible = environ("CUDA_VISIBLE_DEVICES").value_or("");
  const bool sees_one = !visible.empty() && visible.find(',') == std::string::npos;
  info.local_gpu = sees_one && info.launcher != Launcher::kTorchrun ? 0 : info.local_rank;
  return info;
}

// Slurm sets some variables where it has started no rank: SLURM_NTASKS in the shell of salloc, and SLURM_PROCID=0
// without a step's number in the script of sbatch.
bool is_plain_slurm_shell(const Environ& environ) {
  return !environ("SLURM_PROCID") || (environ("SLURM_JOB_ID") && !environ("SLURM_STEP_ID"));
}

// An error if a part of a launcher's variables is set without both its rank and its size. `local`: whether a local rank
// or local size alone is an error, too.
absl::Status check_no_half(const Environ& environ, const Variables& names, bool local) {
  if (environ(names.rank) && environ(names.size)) {
    return absl::OkStatus();
  }
  if (names.launcher == Launcher::kSlurm && is_plain_slurm_shell(environ)) {
    return absl::OkStatus();
  }
  std::vector<std::string> found, missing;
  for (const char* name : {names.rank, names.size}) {
    const auto value = environ(name);
    value ? found.push_back(absl::StrCat(name, "=", *value)) : missing.push_back(name);
  }
  const bool counts = local || !found.empty();
  for (const char* name : {names.local_rank, names.local_size}) {
    if (const auto value = environ(name); value && counts) {
      found.push_back(absl::StrCat(name, "=", *value));
    }
  }
  if (found.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "environment variables of ", base::enum_name(names.launcher), ": expected ", names.rank, " and ", names.size,
      " for one rank of many, or neither of them; found ", absl::StrJoin(found, " and "), " without ",
      absl::StrJoin(missing, " and "), "; set what is missing, or unset the others to start without a launcher"));
}

} // namespace

std::optional<int64_t> slurm_tasks_on_node(const std::string& tasks_per_node, int64_t node) {
  int64_t first = 0; // node of the entry
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(tasks_per_node, ','))) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(entry, absl::MaxSplits("(x", 1));
    int64_t tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(parts.first, &tasks) || tasks < 1) {
      return std::nullopt;
    }
    if (!parts.second.empty() && (!absl::SimpleAtoi(absl::StripSuffix(parts.second, ")"), &nodes) || nodes < 1)) {
      return std::nullopt;
    }
    if (node < first + nodes) {
      return tasks;
    }
    first += nodes;
  }
  return std::nullopt;
}

Environ process_environ() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

std::string first_slurm_host(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) {
    return node_list.substr(0, comma);
  }
  const size_t end = node_list.find_first_of(",-]", bracket);
  if (end == std::string::npos) {
    return "";
  }
  const size_t close = node_list.find(']', end);
  const size_t suffix_end = node_list.find(',', close);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) +
      (close == std::string::npos ? "" : node_list.substr(close + 1, suffix_end - close - 1));
}

absl::StatusOr<RankInfo> detect_ranks(const Environ& environ) {
  RankInfo info;
  for (const Variables& names : kLaunchers) {
    if (environ(names.rank) && environ(names.size)) {
      ASSIGN_OR_RETURN(info, read_variables(environ, names));
      break;
    }
    // A wrapper of another launcher may export LOCAL_RANK alone.
    RETURN_IF_ERROR(check_no_half(environ, names, /*local=*/false));
  }
  if (info.launcher == Launcher::kNone) {
    for (const Variables& names : kLaunchers) {
      RETURN_IF_ERROR(check_no_half(environ, names, /*local=*/true));
    }
  }
  if (const auto descriptor = environ(kListenFdVariable); descriptor && info.rank == 0) {
    absl::SimpleAtoi(*descriptor, &info.master_listen_fd);
  }
  if (const auto address = environ("MASTER_ADDR")) {
    info.master_addr = *address;
  } else if (info.world_size > info.local_world_size) {
    info.master_addr = first_slurm_host(environ("SLURM_NODELIST").value_or(""));
    if (info.master_addr.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment variable MASTER_ADDR is not set, but the ", info.world_size, " ranks of ",
          base::enum_name(info.launcher), " are on several nodes; set it to the host of rank 0"));
    }
  }
  if (environ("MASTER_PORT")) {
    ASSIGN_OR_RETURN(info.master_port, integer(environ, "MASTER_PORT", 1, 65535));
  }
  if (info.launcher == Launcher::kTorchrun && environ("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    info.launcher_serves = true;
    if (environ("TORCHELASTIC_RESTART_COUNT")) {
      ASSIGN_OR_RETURN(info.attempt, integer(environ, "TORCHELASTIC_RESTART_COUNT", 0, INT32_MAX));
    }
  }
  return info;
}

} // namespace distill::launch
