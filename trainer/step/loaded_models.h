#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>

#include "trainer/config/config.h"
#include "trainer/models/model_source.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/model_shards.h"
#include "trainer/sharding/slot_set.h"
#include "trainer/step/environment.h"
#include "trainer/teacher/teacher.h"

namespace distill::trainer {

using models::ModelSource;

enum class Role {
  kStudent,
  kTeacher,
  kFrozenStudent, // for evaluation
};

// Which part of a model a rank loads, and how.
struct LoadOptions {
  int64_t shard_rank = 0, shard_size = 1;
  sharding::StateMemory state = {}; // sharding::ShardOptions
  at::ScalarType gradient_dtype = at::kFloat; // sharding::ShardOptions
  bool may_leave_float8 = false; // sharding::ShardOptions
  config::ProgressStyle progress = config::ProgressStyle::kNone; // of loads that take long
  sharding::PeerMemory* peers = nullptr; // shards lie there; null: in memory of this rank alone
  sharding::Communicator* shard_axis = nullptr; // sharding::ShardOptions
  std::function<void()> unit_loaded = nullptr; // called after each unit that was read; may be empty
};

// How this rank of a run loads a model of which the ranks of the shard axis have a part each, or, if `whole`, each rank
// all of it. Progress is reported to the mesh after every unit that was read. `mesh` outlives the result.
LoadOptions load_options(const config::Config& config, const sharding::Mesh& mesh, bool whole);

// This rank's shards of one model on the environment's device. InvalidArgument names the tensors whose weights are not
// finite.
// `base`: of a model with an adapter, its frozen weights, if they are loaded already.
absl::StatusOr<std::unique_ptr<sharding::ModelShards>> load_model(
    const Environment& environment, const ModelSource& source, Role role, LoadOptions load = {},
    std::shared_ptr<sharding::ModelShards> base = nullptr);

// Whether the frozen base of the student's adapters is the teacher, or the base of the teacher's adapter: the same
// folder, in the same dtype. Its weights are then loaded once.
bool shares_base(
    const config::Config& config, const Environment& environment, const models::ModelConfig& student,
    const TeacherSpec& teacher);
// Loads those weights; null: they are not shared.
absl::StatusOr<std::shared_ptr<sharding::ModelShards>> load_shared_base(
    const config::Config& config, const Environment& environment, const ModelSource& student,
    const TeacherSpec& teacher, const LoadOptions& load);
// Loads the models of a teacher, of which `base` is one, or the base of one, unless it is null.
std::vector<absl::StatusOr<std::shared_ptr<sharding::ModelShards>>> load_teacher(
    const Environment& environment, const TeacherSpec& teacher, const LoadOptions& load,
    const std::shared_ptr<sharding::ModelShards>& base);

// Both models of a training run on this rank, and the slots that their gathered units pass through.
struct LoadedModels {
  sharding::SlotSet slots;
  std::unique_ptr<sharding::ModelShards> student;
  LoadedTeacher teacher;

  // The bytes of this rank's weights that other ranks copy out of peer memory.
  int64_t peer_bytes() const;
};

// Loads both models; `state` is the student's, and errors are those of load_model. Units are gathered by copies if the
// mesh has peer memory and parallel.gather is not nccl. Progress is reported as by load_options. parallel.slots must be
// a number, 0 included. All ranks call it together, and all of them get an error if one does (sharding::agree).
absl::StatusOr<LoadedModels> load_models(
    const config::Config& config, const Environment& environment, const sharding::Mesh& mesh,
    const ModelSource& student, const TeacherSpec& teacher, sharding::StateMemory state);

// A teacher without a student, and the slots that its gathered units pass through.
struct TeacherAlone {
  sharding::SlotSet slots;
  std::unique_ptr<sharding::ModelShards> weights;
};

// The teacher of a capture, loaded and gathered like a run's, by all-gathers. All ranks call it together, and all of
// them get an error if one does.
absl::StatusOr<TeacherAlone> load_teacher_alone(
    const config::Config& config, const Environment& environment, const sharding::Mesh& mesh,
    const ModelSource& teacher);

} // namespace distill::trainer
