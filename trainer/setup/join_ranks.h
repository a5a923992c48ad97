#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// The part of the set-up that concerns the other ranks.
namespace distill::trainer {

// Host name of this machine.
std::string host_name();

// Joins the other ranks according to parallel.*. On one process, returns a mesh without groups.
absl::StatusOr<std::unique_ptr<sharding::Mesh>> join_ranks(
    const config::Config& config, const launch::RankInfo& ranks, at::Device device);

// Decides data.teacher_sequences of a run with several teachers. `together`: the sequences that all ranks read at a
// time. InvalidArgument: not all ranks of a micro-batch would have one teacher.
absl::Status settle_teacher_sequences(int64_t together, config::Config& config);

// Refuses ranks that see another configuration, other model files or other data than rank 0, with both hashes. All
// ranks call it together. `data`, `run`: text that identifies the training data and the rest of this run.
absl::Status check_same_inputs(
    const config::Config& config, const sharding::Mesh& mesh, const std::string& data, const std::string& run);

// Ranks that distill has to start on this host itself: 1 under a launcher, or if the configuration asks for one.
int64_t ranks_to_start(const config::Config& config, const launch::RankInfo& ranks);

} // namespace distill::trainer
