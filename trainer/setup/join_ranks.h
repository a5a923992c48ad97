#pragma once

#include <absl/status/statusor.h>

#include <memory>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"

// What the trainer needs to be one rank of many.
namespace distill::trainer {

// Of this machine.
std::string host_name();

// Joins the other ranks as parallel.* says. One process: a mesh without groups.
absl::StatusOr<std::unique_ptr<sharding::Mesh>> join_ranks(
    const config::Config& config, const launch::RankInfo& ranks, at::Device device);

// Refuses ranks that see another configuration, other model files or other data than rank 0, with both hashes. All
// ranks call it together. `data`, `run`: what identifies the training data and the rest of this run.
absl::Status check_same_inputs(
    const config::Config& config, const sharding::Mesh& mesh, const std::string& data, const std::string& run);

// Ranks that distill has to start on this host itself: 1 under a launcher, or where the configuration asks for one.
int64_t ranks_to_start(const config::Config& config, const launch::RankInfo& ranks);

} // namespace distill::trainer
