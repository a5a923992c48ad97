#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <optional>
#include <vector>

#include "losses/head/chunk_policy.h"
#include "trainer/config/config.h"
#include "trainer/config/dtypes.h"
#include "trainer/device/outside_memory.h"
#include "trainer/models/activation_policy.h"
#include "trainer/models/block.h"
#include "trainer/models/model_config.h"
#include "trainer/sharding/state_memory.h"
#include "trainer/step/environment.h"
#include "trainer/step/head_plan.h"
#include "trainer/teacher/teacher_spec.h"

namespace distill::plan {

// The devices and ranks that a run is planned for. They need not exist here.
struct Target {
  trainer::Environment environment{at::Device(at::kCUDA, 0), at::kBFloat16, at::kBFloat16};
  int64_t world_size = 1;
  int64_t ranks_per_node = 8;
  // True if the ranks of a copy of the models can map each other's memory; nullopt: they can if they are on one node.
  std::optional<bool> peer_memory = std::nullopt;
};

// Everything about a run that decides its memory and its time: the configuration, the models' shapes, the ranks.
struct RunShape {
  // With parallel.gather, parallel.slots, memory.tile_tokens and memory.recompute decided: copy or nccl, numbers, and
  // what is computed again.
  config::Config config;
  models::ModelConfig student;
  trainer::Teachers teachers;
  std::vector<config::Config> configs; // that of each of them
  std::vector<double> shares = {1.0}; // of each of them in the sequences (config::shares_of_teachers)
  trainer::Environment environment;
  int64_t shard = 1; // ranks that share one copy of the models
  int64_t replicate = 1; // number of such copies
  int64_t ranks_per_node = 8;
  int64_t micro_batches = 1; // in a step, on one rank
  bool teacher_stream = false; // the teacher reads tokens of its own, in sequences of data.teacher_seq_len
  losses::ChunkPlan head;
  device::OutsideMemory outside;
  int64_t allocator_limit = 0; // bytes that the allocator and peer memory may have; 0: unknown
  std::vector<models::ActivationPolicy> policies; // one for each of the student's blocks
  std::vector<models::StatePlace> places; // of the optimizer's state, one for each of the student's blocks
  int64_t state_stages = sharding::StateMemory::kLeastStages; // pieces of state from the host on the device at a time

  bool cuda() const {
    return environment.device.is_cuda();
  }
  int64_t tokens() const { // of a micro-batch
    return config.train.micro_batch_size * config.data.seq_len;
  }
  int64_t teacher_seq_len() const { // of the sequences that the teacher reads
    return teacher_stream ? config.data.teacher_length() : config.data.seq_len;
  }
  int64_t teacher_tokens() const { // of a micro-batch, that the teacher reads
    return config.train.micro_batch_size * teacher_seq_len();
  }
  int64_t row_tokens(size_t teacher) const { // of a micro-batch, that may have a row in a cache
    return teachers[teacher].vocabulary().aligned ? teacher_tokens() : tokens();
  }
  int64_t row_bytes() const; // that are read of a teacher for a micro-batch, at most
  trainer::Environment environment_of(size_t teacher) const {
    return trainer::environment_of_teacher(configs[teacher], environment);
  }
  bool is_sharded(size_t teacher) const {
    return configs[teacher].parallel.shard_teacher;
  }
  bool has_whole_teacher() const; // one at least that each rank has as a whole
  int64_t ranks() const {
    return shard * replicate;
  }
  int64_t communicators() const { // between devices: Mesh's gather, reduce, world and, with replicas, replicate
    return ranks() == 1 ? 0 : replicate > 1 ? 4 : 3;
  }
  // How the blocks of a run compute. `functions`: what replaces theirs.
  models::BlockFunctions blocks(models::BlockFunctions functions = {}) const {
    functions.tile_tokens = config.memory.tile_tokens;
    functions.recomputes_attention = config.memory.recompute == config::Recompute::kAll;
    return functions;
  }
  bool copies() const { // gathers are copies from other ranks' memory
    return config.parallel.gather == config::Gather::kCopy;
  }
  int64_t gathered_blocks() const { // of all models whose units are gathered
    int64_t blocks = student.num_layers();
    for (size_t i = 0; i < teachers.size(); ++i) {
      blocks += is_sharded(i) ? teachers[i].blocks() : 0;
    }
    return blocks;
  }
  bool rounds_gradients() const { // into shards of less than 4 bytes for an element
    return config::gradient_bytes(config.optimizer) < 4;
  }
  bool state_on_host() const { // of any block
    return std::any_of(places.begin(), places.end(), models::is_on_host);
  }
  bool passes_through_device() const { // state of any block, from the host
    return std::find(places.begin(), places.end(), models::StatePlace::kHost) != places.end();
  }
  sharding::StateMemory state(std::shared_ptr<device::HostSlab> host) const {
    return {
        models::places_of_units(places, student.tie_word_embeddings), std::move(host), state_stages,
        std::min(ranks(), ranks_per_node)};
  }
  // The mean over the teachers of a quantity, each with its share of the sequences.
  double mean_of_teachers(const std::function<double(size_t teacher)>& quantity) const;
};

// Divides the ranks into shape.shard x shape.replicate, and a step into micro-batches. InvalidArgument names the key.
absl::Status divide_ranks(const Target& target, RunShape& shape);

// `teacher_stream`: whether the training data has texts of the teacher's own, which matters with a teacher only.
// `policies` is left empty if memory.activation is auto, `places` if memory.optimizer is; where parallel.slots is auto,
// the slots are the fewest, and where memory.tile_tokens is, there are no tiles, and where memory.recompute is, all is
// computed again. InvalidArgument names the key.
absl::StatusOr<RunShape> run_shape(
    const config::Config& config, const models::ModelConfig& student, const trainer::Teachers& teachers,
    const Target& target, bool teacher_stream);

} // namespace distill::plan
