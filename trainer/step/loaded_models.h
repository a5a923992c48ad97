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
// Whether two teachers have one copy of their weights, or of the frozen base of their adapters.
bool share_base(
    const config::Config& config, const Environment& environment, const Teachers& teachers, size_t a, size_t b);

// The frozen weights of a run: its teachers, their bases, the base of the student's adapters. What is read from one
// folder in the same way is in memory once.
class FrozenModels {
 public:
  // All of them outlive this object. `load`: how a teacher is loaded that is whole on each rank, or sharded.
  FrozenModels(
      const config::Config& config, const Environment& environment, const Teachers& teachers,
      std::function<LoadOptions(bool whole)> load);

  // Loads the base of the student's adapters if a teacher has the same weights; null: none has.
  absl::StatusOr<std::shared_ptr<sharding::ModelShards>> base_of_student(const ModelSource& student);
  // Loads the models of a teacher.
  std::vector<absl::StatusOr<std::shared_ptr<sharding::ModelShards>>> load_teacher(size_t number);

 private:
  const Environment& environment_;
  const Teachers& teachers_;
  const config::Config& config_;
  std::vector<config::Config> configs_; // of the teachers
  std::function<LoadOptions(bool whole)> load_;
  std::vector<std::shared_ptr<sharding::ModelShards>> bases_; // of each teacher, once it is there
};

// All models of a training run on this rank, and the slots that their gathered units pass through.
struct LoadedModels {
  sharding::SlotSet slots;
  std::unique_ptr<sharding::ModelShards> student;
  std::vector<LoadedTeacher> teachers;

  // The bytes of this rank's weights that other ranks copy out of peer memory.
  int64_t peer_bytes() const;
};

// Loads all models; `state` is the student's, and errors are those of load_model. Units are gathered by copies if the
// mesh has peer memory and parallel.gather is not nccl. Progress is reported as by load_options. parallel.slots must be
// a number, 0 included. All ranks call it together, and all of them get an error if one does (sharding::agree).
absl::StatusOr<LoadedModels> load_models(
    const config::Config& config, const Environment& environment, const sharding::Mesh& mesh,
    const ModelSource& student, const Teachers& teachers, sharding::StateMemory state);

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
