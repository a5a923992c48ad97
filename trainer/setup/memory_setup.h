#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <vector>

#include "trainer/device/host_slab.h"
#include "trainer/launch/ranks.h"
#include "trainer/plan/machine_table.h"
#include "trainer/plan/plan.h"
#include "trainer/setup/inputs.h"
#include "trainer/sharding/mesh.h"

// Decisions about memory that are made before any weight is read.
namespace distill::trainer {

// Host memory that a run takes for tensors that are not stored on the device.
struct HostMemory {
  std::shared_ptr<device::HostSlab> activations; // null: no block's activations are offloaded
  std::shared_ptr<device::HostSlab> optimizer; // for master weights and moments; null: all are on the device
};

// The plan of a run on `world_size` ranks, `ranks_on_host` of them on each host, if it started now: on this device,
// with the host memory that is free. `peer_memory`: as in plan::Target. InvalidArgument names the key.
absl::StatusOr<plan::Plan> plan_run(
    const config::Config& config, const Environment& environment, const models::ModelConfig& student,
    const Teachers& teachers, int64_t world_size, int64_t ranks_on_host,
    std::optional<bool> peer_memory = std::nullopt);

// A rank's share of the memory of this machine's device.
int64_t device_bytes_of_rank(const Environment& environment, int64_t ranks_on_host);

// The device of a plan that is made without one.
struct PaperDevice {
  Environment environment;
  plan::Machine machine; // plan::choose_machine
  bool here = false; // it is this host's GPU
  double memory_bytes = 0; // of this host's GPU, or else of the machine
};
absl::StatusOr<PaperDevice> device_on_paper(const config::Config& config);

// Plans a run without a device, weights or data: for any number of ranks, on the machine that memory.machine names, or
// on this host with the memory that it and its GPU have. `device_share`: the part of the device's memory that the plan
// may use.
absl::StatusOr<plan::Plan> plan_on_paper(
    const config::Config& config, int64_t world_size, int64_t ranks_per_node, double device_share = 1);

// The largest data.seq_len, a multiple of 1024, that fits by the plan with two per cent to spare; 0: none does.
absl::StatusOr<int64_t> longest_sequence(config::Config config, int64_t world_size, int64_t ranks_per_node);

// OutOfRange if the plan does not fit and memory.on_overflow is refuse; the message names changes that would fit.
absl::Status check_fits(const config::Config& config, const plan::Plan& plan);

// Plans, and refuses what does not fit. The plan divides the host memory that is free now among the ranks of this host:
// all of them must plan before any of them takes its part.
absl::StatusOr<plan::Plan> plan_memory(
    const config::Config& config, const Environment& environment, const Inputs& inputs, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh);

// Ranks gather units together, and must do it alike, which depends on where the optimizer's state is. If their plans
// differ in this, since one of them has less memory, `plan` becomes the plan for what all of them can do. All ranks
// call it.
absl::Status agree_on_gathers(
    const config::Config& config, const Environment& environment, const Inputs& inputs, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh, plan::Plan& plan);

// Counts the device's memory from now on, and limits the allocator by memory.limit_gib less what the prediction has in
// peer memory. Call it with what all ranks have agreed on. Warns of the limits that it exceeds (plan::overflows_of).
void limit_memory(
    const config::Config& config, const Environment& environment, const plan::MemoryPrediction& memory,
    const std::vector<std::string>& overflows);

// Takes the host memory that the plan predicts.
absl::StatusOr<HostMemory> take_host_memory(const Environment& environment, const plan::Plan& plan);

// The final message of a run that ran out of memory: the failed request, the bytes that the device held by category,
// and keys to change, with values that fit. Reads the models' configurations again; parts that fail are left out.
std::string out_of_memory_report(const config::Config& config, const launch::RankInfo& ranks, const std::string& error);

} // namespace distill::trainer
