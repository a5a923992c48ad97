#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>

#include "data/dataset.h"
#include "losses/chunk_policy.h"
#include "trainer/config/config.h"
#include "trainer/config/load.h"
#include "trainer/models/weight_source.h"
#include "trainer/setup/environment.h"
#include "trainer/sharding/model_shards.h"

// What a run is made of: first everything is opened and checked (Inputs), then the weights are read.
namespace distill::trainer {

struct ModelInput {
  models::ModelConfig config;
  std::unique_ptr<models::WeightSource> weights;
};

// Opened and checked against each other; no weight has been read.
struct Inputs {
  ModelInput student;
  std::optional<ModelInput> teacher; // nullopt: hard labels only
  std::shared_ptr<data::Dataset> train_data; // null for evaluation
  std::shared_ptr<data::Dataset> eval_data; // null without data.eval
  losses::ChunkPlan head; // for one micro-batch
};

// Checks model folders and their tensors, tokenizers, data and the loss head's memory. Reports all problems together.
absl::StatusOr<Inputs> open_inputs(
    const config::Config& config, const Environment& environment, config::Purpose purpose);

enum class Role {
  kStudent,
  kTeacher,
  kFrozenStudent
};

// Puts this rank's shards of the weights on the environment's device; with `host_state`, master weights and moments
// there.
std::unique_ptr<sharding::ModelShards> load_model(
    const Environment& environment, const ModelInput& input, Role role, int64_t shard_rank = 0, int64_t shard_size = 1,
    std::shared_ptr<device::HostSlab> host_state = nullptr);

// For a checkpoint's identity and for people.
std::string describe_shape(const models::ModelConfig& config);
std::string describe_data(const data::Dataset& data);
// That of the same data with another length and packing.
std::string describe_data(const data::Dataset& data, int64_t seq_len, const std::string& packing);

} // namespace distill::trainer
